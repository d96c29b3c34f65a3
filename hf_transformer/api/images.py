"""Images in chats: parts of OpenAI's and Anthropic's messages, and the images of a request.

    {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}            chat completions
    {"type": "input_image", "image_url": "data:image/png;base64,..."}                    Responses
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data"}}   Messages

The tensors of the predictor's model decide whether it takes images: the input ``image`` of vLLM's backend, or
``image_url`` of TensorRT-LLM's LLM API model. The latter renders the chat template itself, so a chat with images is one
question.

Sources: https://platform.openai.com/docs/guides/images-vision and
https://docs.claude.com/en/docs/build-with-claude/vision
"""

from __future__ import annotations

import asyncio
from binascii import b2a_base64
from collections.abc import Sequence
from typing import Annotated, Final, Literal

from msgspec import Struct

from hf_transformer.errors import InvalidInput, Path, TooLarge
from hf_transformer.generation.image_fetch import fetch_image
from hf_transformer.generation.images import Image, ImageForm, is_data_url, read_file, read_image, split_data_url
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.types.fields import NO_EFFECT, Form, OpenBody, about
from hf_transformer.types.request import Json, RequestBudget
from hf_transformer.types.tokenization import Encoding

NO_FILES: Final = "the service stores no files"
ID_BYTES: Final = 16
"""Bytes of a token's id in a list and in the answer."""
IMAGE: Final = {"type": "image"}
"""An image in the messages of a chat template."""


class ImageUrl(OpenBody):
    """The address of an image."""

    url: Annotated[str, about("A data URL, or an https URL of a host in --allowed_image_hosts.")]
    detail: Annotated[Json, NO_EFFECT] = None


class ImagePart(OpenBody):
    """An image in a user's or a tool's message."""

    type: Literal["image_url"]
    image_url: ImageUrl | str
    detail: Annotated[Json, NO_EFFECT] = None


class InputImage(OpenBody, tag_field="type", tag="input_image"):
    """An image in an item of Responses."""

    image_url: Annotated[str, about("A data URL, or an https URL of a host in --allowed_image_hosts.")]
    detail: Annotated[Json, NO_EFFECT] = None
    file_id: Annotated[None, about(expected="no value", hint=NO_FILES)] = None


class Base64Source(OpenBody, tag_field="type", tag="base64"):
    """An image within the body."""

    media_type: Literal["image/png", "image/jpeg", "image/webp", "image/gif"]
    data: str


class UrlSource(OpenBody, tag_field="type", tag="url"):
    """An image at an address."""

    url: str


class ImageBlock(OpenBody, kw_only=True, tag_field="type", tag="image"):
    """An image in Anthropic's messages."""

    source: Annotated[Base64Source | UrlSource, about(expected="a source of the type base64 or url", hint=NO_FILES)]
    cache_control: Annotated[Json, NO_EFFECT] = None


IMAGE_PART: Final = Form(ImagePart)


def image_part(url: str) -> Json:
    """The part of a chat's message with an image."""
    return {"type": "image_url", "image_url": {"url": url}}


def from_block(block: ImageBlock, path: Path) -> tuple[Json, Path]:
    """Converts Anthropic's block to a part of a chat's message. Returns it with the path of the image in the block."""
    source, path = block.source, (*path, "source")
    if isinstance(source, UrlSource):
        return image_part(source.url), (*path, "url")
    return image_part(f"data:{source.media_type};base64,{source.data}"), (*path, "data")


class ChatImages:
    """The images of a chat, for the model that reads them. ``renders`` is set for a prompt that is not sent to it: the
    tokens of its images are counted by the arithmetic of the model's processor.

    Attributes:
        loaded: the images, in their order, once ``load`` has read them.
        question: the text beside the images, for a model that renders the chat template itself.
    """

    def __init__(self, model: GenerativeModel, budget: RequestBudget, *, renders: bool = False) -> None:
        self._model = model
        self._budget = budget
        self._renders = renders
        self._sources: list[tuple[str, Path]] = []
        self.loaded: Sequence[Image] = ()
        self.question = ""

    @property
    def form(self) -> ImageForm | None:
        """Form in which the model takes images; None for a model of texts. Raises NotReady."""
        if self._renders:
            return None if self._model.image_tokens is None else "base64"
        return self._model.image_form

    def __len__(self) -> int:
        return len(self._sources)

    def add(self, part: Json, path: Path) -> Json:
        """Reads a part. Returns it as chat templates expect it. Raises InvalidInput, and TooLarge for too many."""
        source = IMAGE_PART.read(part, path=path).image_url
        path = (*path, "image_url") if isinstance(source, str) else (*path, "image_url", "url")
        self._sources.append((source if isinstance(source, str) else source.url, path))
        if len(self._sources) > (most := self._model.image_limits.count):
            raise TooLarge(path, f"at most {most} images in a request (--max_images)", str(len(self._sources)))
        return IMAGE

    async def load(self) -> None:
        """Decodes or fetches all images. Raises InvalidInput or TooLarge."""
        limits = self._model.image_limits
        try:
            async with asyncio.timeout(limits.seconds):
                self.loaded = [await self._load(url, path) for url, path in self._sources]
        except TimeoutError:
            expected = f"images that arrive within {limits.seconds:g} s (--image_timeout_seconds)"
            raise InvalidInput(self.first_path, expected, "no answer") from None

    async def _load(self, url: str, path: Path) -> Image:
        limits = self._model.image_limits
        if is_data_url(url):
            data = split_data_url(url, path)
            return await asyncio.to_thread(read_image, data, limits, path, self._budget.hold)
        file = await fetch_image(url, limits, path)
        self._budget.hold(3 * len(file), path)
        base64 = b2a_base64(file, newline=False).decode("ascii")
        return read_file(file, base64, limits, path)

    @property
    def first_path(self) -> Path:
        """The field of the first image."""
        return self._sources[0][1]

    def ask(self, messages: Sequence[Json], *, tools: bool) -> str:
        """Sets ``question`` to the text of a chat with images, for a model that renders the chat template itself, and
        returns it. Raises InvalidInput for a chat of other messages, and for tools."""
        hint = "the predictor's model renders the chat template itself, from one text and its images"
        if tools:
            raise InvalidInput("tools", "no tools beside images", hint=hint)
        if len(messages) != 1 or messages[0]["role"] != "user":
            expected = "one message of a user, if it has images"
            raise InvalidInput("messages", expected, f"{len(messages)} messages", hint)
        self.question = "\n".join(part["text"] for part in messages[0]["content"] if part["type"] == "text")
        return self.question

    def expand(self, encoding: Encoding) -> tuple[Encoding, ImageFeatures]:
        """Replaces the placeholder of each image by its tokens. Returns them with their places.

        Raises:
            InvalidInput: the processor refuses an image, or a text has a placeholder too.
            TooLarge: the answer would have too many token ids.
        """
        tokens = self._model.image_tokens
        if tokens is None:
            raise AssertionError("a model without image tokens has no images to render")
        counts = []
        for image, (_, path) in zip(self.loaded, self._sources, strict=True):
            try:
                counts.append(tokens.count(image.width, image.height))
            except ValueError as error:
                raise InvalidInput(path, str(error), f"{image.width} x {image.height}") from None
        positions = [index for index, token in enumerate(encoding.ids) if token == tokens.token]
        if len(positions) != len(counts):
            expected = f"a placeholder for each of {len(counts)} images in the prompt"
            raise InvalidInput(
                "messages", expected, str(len(positions)), "texts must not contain the model's placeholder"
            )
        self._budget.add_values(sum(counts), sum(counts) * ID_BYTES, "messages")
        ids, end, ranges = list[int](), 0, list[PlaceholderRange]()
        for position, count in zip(positions, counts, strict=True):
            ids += encoding.ids[end:position]
            ranges.append(PlaceholderRange(len(ids), count))
            ids += [tokens.token] * count
            end = position + 1
        ids += encoding.ids[end:]
        hashes = [image.digest for image in self.loaded]
        return Encoding(ids, []), ImageFeatures({"image": hashes}, {"image": ranges}, None, None)


# vLLM's features of a prompt


class PlaceholderRange(Struct):
    """The tokens of an image in a prompt."""

    offset: int
    length: int


class ImageFeatures(Struct):
    """The images of a prompt, by modality. The hashes are SHA-256 of their files."""

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[PlaceholderRange]]
    kwargs_data: None
    mm_metadata: None
