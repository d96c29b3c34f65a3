"""Conversion of texts to token ids and back, with the same results as transformers' AutoTokenizer."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import decoders

from hf_transformer.cpus import available_cpus
from hf_transformer.errors import InvalidInput, LoadError
from hf_transformer.tasks.pair_template import PairTemplate
from hf_transformer.tokenizer.engine import Engine, characters, too_many_tokens
from hf_transformer.tokenizer.files import MAX_FILE_BYTES
from hf_transformer.tokenizer.letters import control_tokens, starts_of
from hf_transformer.tokenizer.load import LoadedTokenizer, choose_max_length, load_folder
from hf_transformer.tokenizer.prefixes import LONG_TEXT_CHARACTERS
from hf_transformer.tokenizer.python_engine import PythonEngine
from hf_transformer.tokenizer.rust_engine import RustEngine
from hf_transformer.tokenizer.shared import SharedEngines
from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import PLAIN, Encoding, PromptText, TextInput, Tokenization, UserTokens

INLINE_CHARACTERS = 2000
"""Maximum number of characters to encode on the event loop. Longer inputs are encoded in a thread.

Measured on two busy cores with a vocabulary of 30,522 WordPiece tokens: 0.4 to 0.6 microseconds per character, about
1 ms at the limit. Switching to a thread and back takes 0.06 to 0.15 ms. A single text of cached words may be longer.
"""

CPUS = available_cpus()
"""Number of chunks of texts to encode at a time, in all requests."""

CHUNK_TEXTS, CHUNK_CHARACTERS = 64, 16_000
"""Maximum number of texts, and approximate number of characters, per call of the library, about 10 ms.

Requests take turns after each chunk. The library keeps all encodings of a call in memory, gigabytes for a thousand long
texts.
"""

INLINE_IDS = 2000
"""Maximum number of ids to decode while holding the GIL, which takes about 1 ms. Longer decoding releases the GIL."""

CLEAN_UP = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {ending}", ending) for ending in ("n't", "'m", "'s", "'ve", "'re")),
)
"""Replacements of clean_up_tokenization_spaces, in order."""

MASK_TOKENS = ("[MASK]", "<mask>")
"""Possible mask tokens if the settings define none."""

Result = TypeVar("Result")


class Tokenizer:
    """Tokenizer of a model. Thread-safe; calls don't affect each other.

    Attributes:
        max_length: the limit in tokens, including special tokens.
        special_tokens: the special tokens by names such as ``pad_token``.
        pad_token_id: the id of the padding token.
        pad_id: a valid id for masked positions; never None.
        mask_token, mask_id: the mask token and its id.
        cls_id, unk_id: the ids of the classification token and of the token for unknown words.
        vocab_size: the highest id plus one. A model's logits need at least this many columns.
        padding_side: ``left`` or ``right``.
        marks_subwords: whether tokens that continue a word have a prefix (## of WordPiece).
        cleans_up: whether ``decode`` removes spaces before punctuation (CLEAN_UP).
        byte_level: whether tokens are bytes in GPT-2's alphabet.
        source: the origin of the ids in words, see LoadedTokenizer.
        user_tokens: the plain strings whose special tokens are letters, see ``user_tokens_as_letters``.
        file: the path of tokenizer.json.

    Missing tokens, their ids and a missing file are None.
    """

    token_to_id: Callable[[str], int | None]
    """Returns the id of a token, or None if it is unknown."""
    id_to_token: Callable[[int], str | None]
    """Returns the token of an id, or None if it is unknown."""
    join_tokens: Callable[[list[str]], str]
    """Converts tokens to text, as AutoTokenizer.convert_tokens_to_string does."""

    def __init__(self, loaded: LoadedTokenizer, engine: Engine, max_length: int) -> None:
        self._engine = engine
        self._turns = asyncio.Semaphore(CPUS)
        self.max_length = max_length
        backend, self._slow = loaded.backend, loaded.slow
        self.source, self.file = loaded.source, loaded.file
        self.user_tokens: UserTokens = "none"
        self._control: re.Pattern[str] | None = None
        vocab: dict[str, int] = {} if backend else self._slow.get_vocab()
        names = {number: token for token, number in vocab.items()}
        self.token_to_id, self.id_to_token = vocab.get, names.get
        self._use(backend)
        decoder = None if backend is None or self._slow is not None else backend.decoder
        self.join_tokens = " ".join if decoder is None else decoder.decode
        if self._slow is not None:
            self.join_tokens = self._slow.convert_tokens_to_string
        self.vocab_size = loaded.size
        self.padding_side = loaded.padding_side
        self.cleans_up = loaded.cleans_up
        self.byte_level = isinstance(decoder, decoders.ByteLevel)
        self.marks_subwords = bool(backend and getattr(backend.model, "continuing_subword_prefix", None))
        self.special_tokens = tokens = loaded.tokens
        ids = {name: self.token_to_id(token) for name, token in tokens.items()}
        self.cls_id, self.unk_id, self.pad_token_id = map(ids.get, ("cls_token", "unk_token", "pad_token"))
        usable = (self.pad_token_id, ids.get("eos_token"), self.unk_id)
        self.pad_id = next((number for number in usable if number is not None), 0)
        self.mask_token = tokens.get("mask_token") or next(
            (text for text in MASK_TOKENS if self.token_to_id(text)), None
        )
        self.mask_id = self.token_to_id(self.mask_token) if self.mask_token else None

    def _use(self, backend: Any) -> None:
        self._backend = backend
        if backend is not None:
            self.token_to_id, self.id_to_token = backend.token_to_id, backend.id_to_token

    def share(self, engines: SharedEngines) -> None:
        """Shares vocabulary and word cache with the models of equal tokenizers.

        Call it after ``frame_pairs``, before ``user_tokens_as_letters`` and before the first text is encoded.
        """
        if isinstance(self._engine, RustEngine):
            self._engine = engine = engines.share(self._engine)
            self._use(engine.backend)

    def encode(self, texts: Sequence[TextInput], *, offsets: bool = False) -> list[Encoding]:
        """Encodes each text or pair, truncated to ``max_length``, without padding.

        ``offsets`` adds all optional fields of Encoding. Raises InvalidInput.
        """
        return [windows[0] for windows in self.encode_windows(texts, Tokenization(detail=True) if offsets else PLAIN)]

    def encode_windows(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """Encodes each text into one encoding, or into several windows with ``options.windows``.

        Raises:
            InvalidInput: a text can't be encoded with these options.
            TooLarge: more than ``options.max_tokens`` or a limit of ``options.budget``.
            TooManyRequests: see WindowBudget.
        """
        encodings: list[list[Encoding]] = []
        for chunk in _chunks(texts):
            encodings += self._encode(chunk, options)
            _check_totals(encodings, options)
        return encodings

    def _encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """Encodes each text into windows. Adds the tokens' strings if ``options`` requests whole texts in detail."""
        encodings = self._engine.encode(texts, options)
        if options.whole and options.detail:
            self._name(encodings)
        return encodings

    def _name(self, encodings: Sequence[Sequence[Encoding]]) -> None:
        """Adds the tokens' strings to the encodings of whole texts."""
        for [encoding] in encodings:
            names = {number: self.id_to_token(number) or "" for number in set(encoding.ids)}  # each looked up once
            encoding.tokens = [names[number] for number in encoding.ids]

    def cache_checks(self) -> Mapping[str, float]:
        """The number of texts whose cached ids were compared with the library's, by result. Empty without a cache."""
        engine = self._engine
        return engine.cache_check.results if isinstance(engine, RustEngine) and engine.has_cache else {}

    async def encode_off_loop(
        self, texts: Sequence[TextInput], executor: Executor, options: Tokenization = PLAIN, length: int | None = None
    ) -> list[list[Encoding]]:
        """Calls ``encode_windows`` without blocking the event loop.

        The executor encodes long texts with unknown words, and many texts. Cancellation stops it after the current
        chunks. ``length`` is the total number of characters, if known.
        """
        if length is None:
            length = sum(map(characters, texts))
        if length <= INLINE_CHARACTERS:
            return self._encode(texts, options)
        if len(texts) > 1:
            return await self._encode_many(texts, executor, options)
        if windows := self._engine.cached(texts[0], options):
            encodings = [windows]
        else:
            loop, missed = asyncio.get_running_loop(), self._engine.encode_missed
            encodings = await loop.run_in_executor(executor, missed, texts, options)
            if options.whole and options.detail:
                self._name(encodings)
        _check_totals(encodings, options)
        return encodings

    async def _encode_many(
        self, texts: Sequence[TextInput], executor: Executor, options: Tokenization
    ) -> list[list[Encoding]]:
        """Encodes chunks of texts in the executor on all CPUs, in turn with those of other requests."""
        loop, encodings = asyncio.get_running_loop(), list[list[Encoding]]()

        async def encode_in_turn(chunk: Sequence[TextInput]) -> list[list[Encoding]]:
            async with self._turns:
                return await loop.run_in_executor(executor, self._encode, chunk, options)

        # The engine encodes the longest texts one by one, so further threads would only wait.
        threads = 1 if any(characters(text) > LONG_TEXT_CHARACTERS for text in texts) else CPUS
        chunks, running = _chunks(texts), deque[asyncio.Task[list[list[Encoding]]]]()
        try:
            while True:
                running.extend(map(loop.create_task, map(encode_in_turn, islice(chunks, threads - len(running)))))
                if not running:
                    return encodings
                encodings += await running.popleft()
                _check_totals(encodings, options)
        finally:
            for task in running:
                task.cancel()

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Decodes ids to text, as AutoTokenizer.decode does."""
        if self._slow is not None:
            return str(self._slow.decode(list(ids), skip_special_tokens=skip_special_tokens))
        text = self.decode_unclean(ids, skip_special_tokens)
        for old, new in CLEAN_UP if self.cleans_up else ():
            text = text.replace(old, new)
        return text

    def decode_unclean(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Decodes ids without the replacements of CLEAN_UP."""
        if self._slow is not None:
            options = {"skip_special_tokens": skip_special_tokens, "clean_up_tokenization_spaces": False}
            return str(self._slow.decode(list(ids), **options))
        if len(ids) <= INLINE_IDS:
            return str(self._backend.decode(ids, skip_special_tokens=skip_special_tokens))
        return str(self._backend.decode_batch([list(ids)], skip_special_tokens)[0])

    async def decode_off_loop(
        self, texts: Sequence[Sequence[int]], executor: Executor | None, skip_special_tokens: bool
    ) -> list[str]:
        """Decodes each sequence of ids. The executor decodes large inputs; None selects the event loop's default
        executor.

        Cancellation stops the executor's work after the current sequence.
        """
        if sum(map(len, texts)) <= INLINE_IDS:
            return [self.decode(ids, skip_special_tokens) for ids in texts]
        return await _in_thread(
            executor, lambda stop: [self.decode(ids, skip_special_tokens) for ids in texts if not stop.is_set()]
        )

    def decoded_length(self, texts: Sequence[Sequence[int]]) -> int:
        """The most characters that sequences of ids may decode to: as if all of their tokens were the longest one."""
        longest = max((len(self.id_to_token(number) or "") for number in {*chain.from_iterable(texts)}), default=0)
        return sum(map(len, texts)) * (longest + 1)

    def skipped_tokens(self) -> dict[str, int]:
        """Special tokens with their ids, which ``decode`` can skip."""
        if self._slow is not None:
            return {str(token): number for number, token in self._slow.added_tokens_decoder.items() if token.special}
        added = self._backend.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items() if token.special}

    def language_ids(self) -> Mapping[str, int]:
        """Tokens of languages that are no special tokens of the vocabulary, by their codes; see M2M100Tokenizer."""
        return getattr(self._slow, "lang_code_to_id", None) or {} if self._backend is None else {}

    def language_marks(self) -> Mapping[str, int]:
        """Tokens of Marian's target languages, such as >>fra<<."""
        marks: Sequence[str] = getattr(self._slow, "supported_language_codes", ())
        return {mark: number for mark in marks if (number := self.token_to_id(mark)) is not None}

    def first_token_id(self, text: str) -> int | None:
        """Id of a text's first token, without special tokens. None if the text has no tokens, or can't be encoded."""
        try:
            [[encoding]] = self.encode_windows([text], Tokenization(whole=True, special_tokens=False))
        except InvalidInput:
            return None
        return encoding.ids[0] if encoding.ids else None

    def frame_pairs(self, template: PairTemplate) -> PairTemplate:
        """Adds a reranker's template to pairs, in place of special tokens. Call it before the first text is encoded.

        Returns the template for the texts of pairs. Raises LoadError for a tokenizer written in Python.
        """
        if not isinstance(self._engine, RustEngine):
            raise LoadError("a reranker with a template needs a tokenizer.json; this tokenizer is written in Python")
        tokens = self.special_tokens
        start = tokens.get("bos_token", "") if template.begins else ""
        if start == tokens.get("pad_token"):
            start = ""
        template = template.with_label() if self.byte_level else template
        self._engine.frame_pairs(start, template.separator, template.suffix)
        return template

    def user_tokens_as_letters(self, scope: UserTokens, template: str = "") -> None:
        """Tokenizes special tokens in texts of users as letters (--user_special_tokens).

        Call it before the first text is encoded, and after ``frame_pairs``. It always applies to PromptText; ``scope``
        says to which plain strings. Added tokens in ``template``, the chat template, count as special tokens too.
        """
        self.user_tokens = scope
        self._engine.user_tokens_as_letters(scope, template)
        self._control = starts_of(self.control_tokens(template))

    def broken(self, text: str) -> str:
        """Breaks users' special tokens with a zero-width space, for a model that tokenizes texts itself."""
        if self._control is None:
            return str(text)
        plain = ((0, len(text)),) if self.user_tokens == "all" else ()
        pieces, position = list[str](), 0
        for start, end in text.letters if isinstance(text, PromptText) else plain:
            pieces += text[position:start], self._control.sub("\\1\u200b", text[start:end])
            position = end
        return "".join([*pieces, text[position:]])

    def control_tokens(self, template: str) -> dict[str, bool]:
        """Added tokens that steer the model, see ``control_tokens`` of letters.py, and whether they are special."""
        if self._slow is None:
            return {token.content: token.special for token in control_tokens(self._backend, template).values()}
        added = self._slow.added_tokens_decoder.values()
        return {str(token): token.special for token in added if token.special or str(token) in template}

    def with_max_length(self, length: int) -> Tokenizer:
        """Returns a tokenizer with a different limit in tokens."""
        if length == self.max_length:
            return self
        tokenizer = copy(self)
        tokenizer._engine, tokenizer.max_length = self._engine.with_max_length(length), length
        return tokenizer


async def _in_thread(executor: Executor | None, work: Callable[[threading.Event], Result]) -> Result:
    """Runs ``work`` in the executor, and returns its result. Cancellation sets the event passed to ``work``."""
    stop = threading.Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, work, stop)
    finally:
        stop.set()


def _check_totals(encodings: Sequence[Sequence[Encoding]], options: Tokenization) -> None:
    """Raises TooLarge for too many tokens."""
    if options.whole and sum(len(encoding) for windows in encodings for encoding in windows) > options.max_tokens:
        raise too_many_tokens(options)


def _chunks(texts: Sequence[TextInput]) -> Iterator[Sequence[TextInput]]:
    """Splits texts into chunks of at most CHUNK_TEXTS texts. A chunk also ends once it has CHUNK_CHARACTERS."""
    start = size = 0
    for index, text in enumerate(texts):
        if index > start and (index - start == CHUNK_TEXTS or size >= CHUNK_CHARACTERS):
            yield texts[start:index]
            start, size = index, 0
        size += characters(text)
    if start < len(texts):
        yield texts[start:]


def load_tokenizer(
    folder: Path | str,
    model_config: Mapping[str, Json],
    *,
    max_model_len: int | None = None,
    at_most: int | None = None,
    lower_case: bool = True,
    special_tokens: bool = True,
    trust_remote_code: bool = False,
    word_cache: bool = True,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Tokenizer:
    """Loads the tokenizer of a folder.

    Args:
        folder: the folder of tokenizer.json or the vocabulary files.
        model_config: config.json, for the tokenizer's class and the maximum sequence length.
        max_model_len: the limit in tokens. None for the smaller of the tokenizer's and the model's limit, or 512.
        at_most: an upper bound for the limit, ignored with ``max_model_len``.
        lower_case: False disables lower-casing; True keeps the model's setting.
        special_tokens: whether to add special tokens such as [CLS] and [SEP].
        trust_remote_code: whether the folder's own Python code may run.
        word_cache: whether to cache the ids of words (words.py).
        max_file_bytes: the limit of tokenizer.json.

    Raises:
        LoadError: files are invalid or missing, custom code is required but not allowed, or the limit is out of range.
    """
    loaded = load_folder(
        Path(folder),
        model_config,
        lower_case=lower_case,
        trust_remote_code=trust_remote_code,
        max_file_bytes=max_file_bytes,
    )
    backend = loaded.backend
    max_length = choose_max_length(max_model_len, loaded.model_max_length, model_config)
    if at_most is not None and max_model_len is None:
        max_length = min(max_length, at_most)
    added = (backend or loaded.slow).num_special_tokens_to_add(False) if special_tokens else 0
    if max_length <= added:
        raise LoadError(f"a limit of {max_length} tokens leaves no room for text: {added} special tokens are added")
    if backend is None:
        return Tokenizer(loaded, PythonEngine(loaded.slow, max_length, special_tokens), max_length)
    side = loaded.truncation_side
    engine = RustEngine(backend, max_length, special_tokens=special_tokens, truncation_side=side, word_cache=word_cache)
    return Tokenizer(loaded, engine, max_length)
