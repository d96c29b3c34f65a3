"""The few shapes of the domain, named once.

Nobody changes one that somebody else has made. Those of which every request makes some are not frozen all the same: a
frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Json: TypeAlias = Any
"""What a JSON parser gives or a JSON writer takes."""


@dataclass(frozen=True, slots=True)
class Words:
    """A text that the client has split into words already."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A text that the client has tokenized already. They are used as they are: special tokens are the client's."""

    ids: tuple[int, ...]


TextInput: TypeAlias = str | tuple[str, str] | Words | TokenIds
"""A text, a pair of texts that the tokenizer joins with its separator, a text in words, or in tokens."""

NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
"""Datatypes of the open inference protocol that numpy has too; BF16 and BYTES are handled by the codecs."""


@dataclass(slots=True)
class Tensor:
    """A named tensor as it travels: ``datatype`` is the protocol's name of the type (``INT64``, ``FP32``, ``BYTES``).

    ``data`` has the tensor's shape. BF16 arrives widened to float32 (numpy has no bfloat16), BYTES as an object array.
    """

    name: str
    datatype: str
    data: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape


@dataclass(slots=True)
class Texts:
    """A BYTES tensor that a client has sent: its elements are text, in the order of rows (row-major).

    Not an array: short requests would spend more time on making one and reading it again than on anything else.
    """

    name: str
    shape: tuple[int, ...]
    texts: list[str]
    datatype: ClassVar[str] = "BYTES"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output in a model's configuration; ``shape`` has no batch dimension, -1 is a free axis."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What the predictor says of a model.

    ``max_batch_size`` is 0 for a model without a batch dimension of Triton's own (shapes are then complete).
    ``max_batch_size`` is None where the predictor can't tell (it has no configuration endpoint); the specs' shapes
    are then those of the metadata, batch axis included. ``instances`` is how many batches the model works on at a time,
    as far as its configuration tells. ``dynamic_batching`` says that the predictor merges requests which wait.
    """

    name: str
    version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int | None
    decoupled: bool = False
    instances: int = 1
    dynamic_batching: bool = False


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """What a predictor says of itself. ``extensions`` are those of the V2 protocol that it has."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RepositoryEntry:
    """One model, in one version, of a predictor's repository.

    ``state`` is READY, UNAVAILABLE, LOADING or UNLOADING, and empty for one that was never loaded; ``reason`` says why
    it is not ready, where the predictor tells.
    """

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What the service says of the model that it serves, so that a generic client can drive it.

    ``version`` is the predictor's. ``inputs`` and ``outputs`` are those that clients of the V2 protocol send and get:
    text in, answers out; the first axis counts the instances. ``max_length`` is in tokens, special ones included.
    """

    name: str
    version: str
    task: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_length: int


@dataclass(frozen=True, slots=True)
class Cut:
    """What the model's length would cut off of a whole text: ``count`` tokens, and where they lie.

    ``spans`` have (start, end) positions in characters for each text of the instance, None for a text of which nothing
    is cut. They are None together where the tokenizer has no offsets.
    """

    count: int
    spans: tuple[tuple[int, int] | None, ...] | None


@dataclass(slots=True)
class Encoding:
    """One instance's (or one window's) tokens, as the tokenizer gave them, without padding.

    All lists have the same length S. ``type_ids`` tell the first text (0) from the second (1), for models that want
    it. ``truncated`` is true when text was cut off to fit, and lies in no other window. The rest is None unless
    ``Tokenization.detail`` asks for it: ``offsets`` are (start, end) positions in characters of the caller's own string
    (of its word, for ``Words``), ``special_mask`` is 1 where the tokenizer added a special token, ``word_ids`` number
    the words, ``sequence_ids`` are 0 for the first text and 1 for the second; both are None at special tokens.
    ``cut``, and with ``detail`` the names of the ids in the vocabulary, ``tokens``, are there for a ``whole`` text.
    """

    ids: list[int]
    type_ids: list[int]
    truncated: bool = False
    offsets: list[tuple[int, int]] | None = None
    special_mask: list[int] | None = None
    word_ids: list[int | None] | None = None
    sequence_ids: list[int | None] | None = None
    tokens: list[str] | None = None
    cut: Cut | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Tokenization:
    """How one request's texts are tokenized; the default is one encoding per text, cut to the model's length.

    ``max_length`` (tokens, special ones included) may lower the model's own. With ``windows`` a text that is too long
    becomes several encodings, of which neighbours share ``stride`` tokens; None stands for half of the length, 128 at
    most. ``only_second`` cuts the second text of a pair alone (a question's context), ``only_first`` the first alone,
    otherwise the longer one is cut first. ``detail`` fills in all of Encoding. ``max_windows`` bounds all windows of
    the request together.

    With ``whole`` texts are not cut; Encoding.cut tells what would be. A tokenizer written in Python then leaves out
    the details that it does not have. ``special_tokens`` says whether they are added, None for what the service does.
    ``max_tokens`` bounds all tokens of the request together, and follows from ``token_values``: how many values the
    answer will hold for each of them. These three go with ``whole`` alone.
    """

    detail: bool = False
    windows: bool = False
    stride: int | None = 0
    max_length: int | None = None
    only_second: bool = False
    only_first: bool = False
    max_windows: int = 2**31
    whole: bool = False
    special_tokens: bool | None = None
    token_values: int = 0
    max_tokens: int = 2**31

    @property
    def one_side(self) -> bool:
        """Whether one certain text of a pair is cut and the other one never."""
        return self.only_first or self.only_second


PLAIN = Tokenization()


@dataclass(slots=True)
class Answers:
    """What one request is answered with: a prediction per instance, and tensors beside them where a task has any.

    ``tokens`` is how many tokens the model has read, special ones included and padding left out. ``tensor`` holds the
    predictions as one tensor, where ``Query.tensors`` asks for it.
    """

    predictions: list[Json]
    outputs: Sequence[Tensor] = ()
    tokens: int = 0
    tensor: Tensor | None = None


@dataclass(slots=True)
class Query:
    """One request, whichever API it came through.

    ``tensors`` asks for the predictions as a tensor too. ``name`` is what the client calls its instances, for messages.
    """

    instances: Sequence[Json]
    parameters: Mapping[str, Json]
    tensors: bool = False
    name: str = "instances"


class Budget(Protocol):
    """What is told how many tokens a request has, once that is known."""

    def charge(self, tokens: int) -> None: ...
    def expect(self, characters: int) -> None: ...
    def leave(self) -> None: ...


class Context:
    """What goes along with one request, with its stopwatch: seconds that it spent in each stage.

    Attributes:
        request_id: what logs and the response call it.
        headers: what the predictor gets too, names in lower case.
        deadline: when the caller stops waiting, in seconds of the event loop's clock; None if it did not say.
        ignored: names of parameters and keys that were ignored, which the client is told.
        place: what the request takes of the service's budget; None where nothing is counted.
        instances, tokens: how much was asked, once that is known.
        sent_with: the traceparent of another request, with whose headers a batch was sent that has some of this one's
            instances.
        arrived: of time.perf_counter, when the whole body was there.
        parse: from then until the texts were known.
        tokenize: from then until they were encoded.
        preprocess: KServe's stage, the part of these two within the pipeline.
        queue: the part of ``predict`` until the last instance left for the predictor.
        predict: from the encodings to the answers, decoding left out.
        postprocess: decoding, and putting the answers together.
    """

    __slots__ = (
        "arrived",
        "deadline",
        "headers",
        "ignored",
        "instances",
        "parse",
        "place",
        "postprocess",
        "predict",
        "preprocess",
        "queue",
        "request_id",
        "sent_with",
        "tokenize",
        "tokens",
    )

    def __init__(self, request_id: str, headers: Mapping[str, str], *, deadline: float | None = None) -> None:
        self.request_id = request_id
        self.headers = headers
        self.deadline = deadline
        self.ignored: list[str] = []
        self.place: Budget | None = None
        self.instances = self.tokens = 0
        self.sent_with = ""
        self.arrived = self.parse = self.tokenize = self.preprocess = self.queue = self.predict = self.postprocess = 0.0


class ClientGone(Exception):
    """The client has closed its connection: there is nobody to answer."""


NO_PARAMS: Final[Mapping[str, str]] = {}


class Request(ABC):
    """One HTTP request whose head is there, however it came in. ``read`` gives its body.

    Attributes:
        method: in capitals, as sent.
        path: percent-decoded, without the query.
        raw_path, query: as sent; the query without its question mark.
        fields: the header lines in their order, names in lower case.
        headers: the same by name; of a name that comes twice the last one counts.
        version: ``1.1`` or ``1.0``.
        scheme: http or https.
        id: what logs and the response call it; set by the function around every request.
        route: the template of the path, once it is known.
        params: what the path names, such as the model.
        log: what the access log keeps of it, None without one.
        at_end: whether ``read`` has given all of the body.
    """

    __slots__ = (
        "at_end",
        "fields",
        "headers",
        "id",
        "log",
        "method",
        "params",
        "path",
        "query",
        "raw_path",
        "route",
        "scheme",
        "version",
    )

    def __init__(
        self,
        method: str,
        path: str,
        raw_path: bytes,
        query: bytes,
        fields: list[tuple[bytes, bytes]],
        version: str,
        scheme: str,
    ) -> None:
        self.method = method
        self.path = path
        self.raw_path = raw_path
        self.query = query
        self.fields = fields
        self.headers = dict(fields)
        self.version = version
        self.scheme = scheme
        self.id = self.route = ""
        self.params: Mapping[str, str] = NO_PARAMS
        self.log: Any = None
        self.at_end = False

    @abstractmethod
    async def read(self) -> bytes:
        """The next bytes of the body, as soon as there are any; none at its end. Raises ClientGone."""

    @property
    @abstractmethod
    def client(self) -> tuple[str, int] | None:
        """The address that the request came from."""

    @property
    @abstractmethod
    def server(self) -> tuple[str, int] | None:
        """The address that it came to."""

    def scope(self) -> dict[str, Any]:
        """The request as ASGI has it. Source: https://asgi.readthedocs.io/en/latest/specs/www.html"""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self.version,
            "method": self.method,
            "scheme": self.scheme,
            "path": self.path,
            "raw_path": self.raw_path,
            "query_string": self.query,
            "root_path": "",
            "headers": self.fields,
            "client": self.client,
            "server": self.server,
        }


HeaderLines: TypeAlias = list[tuple[bytes, bytes]]
"""Header lines in their order, names in lower case."""


@dataclass(slots=True)
class Response:
    """A whole response. Whoever sends it adds Content-Length, Date and Connection."""

    status: int
    body: bytes
    headers: HeaderLines


@dataclass(slots=True)
class Stream:
    """A response whose body is sent as it comes: ``first`` with the head, then ``parts``, each when the client has
    read what came before. Whoever sends it closes ``parts`` in the end, whatever happens."""

    status: int
    first: bytes
    parts: AsyncGenerator[bytes, None]
    headers: HeaderLines


class Application(Protocol):
    """What a server of HTTP needs to know of the service."""

    async def handle(self, request: Request) -> Response | Stream:
        """Answers one request; cancelled when its client leaves."""

    def refuse(self, request: Request, status: int, message: str) -> Response:
        """The answer to a request that the server can't take. If its head could not be read, it has no fields."""

    def finished(self, request: Request, answer: Response | Stream | None, sent: int) -> None:
        """Notes the end of a request whose ``log`` is set. ``answer`` is None if its client has left; ``sent`` is in
        bytes of the body."""
