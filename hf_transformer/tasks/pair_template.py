"""Templates of rerankers: the text that a model expects around a query and a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hf_transformer.errors import LoadError
from hf_transformer.types.tokenization import FramedPair, PromptText


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTemplate:
    """The text around a query and a document. Only the document is ever truncated.

    The model reads ``before_query`` + query + ``after_query``, the separator, ``before_document`` + document, and the
    suffix. The tokenizer encodes the elements of ``separator`` and ``suffix`` each by itself.

    Attributes:
        instructed: the texts before and after an instruction, which replace ``before_query`` in a request with one;
            None for a template without instructions.
        begins: whether the tokenizer's bos token precedes, unless padding has the same id.
    """

    before_query: str
    after_query: str = ""
    separator: tuple[str, ...] = ()
    before_document: str = ""
    suffix: tuple[str, ...] = ()
    instructed: tuple[str, str] | None = None
    begins: bool = False

    def pair(self, query: str, document: str, instruction: str | None) -> tuple[str, str]:
        """Returns both texts of the pair. ``instruction`` must be None for a template without instructions."""
        first = PromptText.around(self._before(instruction), query, self.after_query)
        return first, PromptText.around(self.before_document, document)

    def pairs(
        self, query: str, documents: Sequence[str], instruction: str | None, count: int | None
    ) -> Sequence[tuple[str, str] | FramedPair]:
        """Returns the pairs of a query and each document, which share the first text. ``count`` is the number of tokens
        that the query is cut to; None for the whole query."""
        before, label = self._before(instruction), self.before_document
        if count is not None:
            return [FramedPair(before, query, self.after_query, f"{label}{document}", count) for document in documents]
        first = PromptText.around(before, query, self.after_query)
        return [(first, PromptText.around(label, document)) for document in documents]

    def _before(self, instruction: str | None) -> str:
        if instruction is None or self.instructed is None:
            return self.before_query
        return PromptText.around(self.instructed[0], instruction, self.instructed[1])

    def with_label(self) -> PairTemplate:
        """Moves the text before a document up to its space into the separator, so that each window has it.

        This suits byte-level tokenizers, whose words begin with their space.
        """
        label = self.before_document.rstrip(" ")
        if not label or self.separator:
            return self
        return replace(self, separator=(label,), before_document=self.before_document[len(label) :])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranker:
    """A reranker's template and tokens.

    Attributes:
        template: the text around query and document; None for the tokenizer's own form of a pair.
        tokens: for a causal model, the tokens whose logits make the score, as ids or texts: a single token's logit, or
            the last token's logit minus the first's. Empty for a model with a classification head.
    """

    template: PairTemplate | None = None
    tokens: tuple[int | str, ...] = ()


_QWEN3_SYSTEM = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: '
)
_QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
QWEN3 = PairTemplate(
    before_query=f"{_QWEN3_SYSTEM}{_QWEN3_INSTRUCTION}\n<Query>: ",
    instructed=(_QWEN3_SYSTEM, "\n<Query>: "),
    after_query="\n",
    before_document="<Document>: ",
    suffix=("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",),
)
"""The template of Qwen3-Reranker. Source: its model card."""
BGE = PairTemplate(
    begins=True,
    before_query="A: ",
    separator=("\n",),
    before_document="B: ",
    suffix=(
        "\n",
        "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
        "prediction of either 'Yes' or 'No'.",
    ),
)
"""The template of bge-reranker-v2-gemma and -minicpm.

Source: FlagEmbedding/inference/reranker/decoder_only/base.py in FlagEmbedding.
"""
PRESETS = {"qwen3": Reranker(template=QWEN3, tokens=("no", "yes")), "bge": Reranker(template=BGE, tokens=("Yes",))}
"""Rerankers whose files lack their template, by their name in --rerank_template."""
ARCHITECTURES = {
    **dict.fromkeys(("Qwen3ForCausalLM", "Qwen3ForSequenceClassification"), "qwen3"),
    **dict.fromkeys(("GemmaForCausalLM", "MiniCPMForCausalLM", "LayerWiseMiniCPMForCausalLM"), "bge"),
}
"""The preset of an architecture in config.json."""

QUERY_MARK, DOCUMENT_MARK, INSTRUCTION_MARK = "\ue000query\ue001", "\ue000document\ue001", "\ue000instruction\ue001"
"""Marks in private characters, which no template contains."""


def template_of(render: Callable[[str, str, str | None], str]) -> PairTemplate | None:
    """Converts a template in Jinja to its parts.

    Args:
        render: renders a query, a document and an instruction, if any.

    Returns:
        None if the rendered text lacks the query or the document.

    Raises:
        LoadError: the template changes texts or repeats them, or has the document first.
    """
    rendered = render(QUERY_MARK, DOCUMENT_MARK, None)
    if QUERY_MARK not in rendered or DOCUMENT_MARK not in rendered:
        return None
    parts = _between(rendered, QUERY_MARK, DOCUMENT_MARK)
    if parts is None:
        raise LoadError("the reranker's template: expected the query and then the document, each once")
    head, middle, suffix = parts
    # A tokenizer never joins a line break with the text after it, and hardly ever a word with the space after it.
    cut = middle.rfind("\n") + 1 or max(middle.rfind(" "), 0)
    template = PairTemplate(
        before_query=head, after_query=middle[:cut], before_document=middle[cut:], suffix=(suffix,) * bool(suffix)
    )
    instructed = _between(
        render(QUERY_MARK, DOCUMENT_MARK, INSTRUCTION_MARK), INSTRUCTION_MARK, QUERY_MARK, DOCUMENT_MARK
    )
    if instructed is not None and instructed[2:] == (middle, suffix):
        template = replace(template, instructed=(instructed[0], instructed[1]))
    # Spaces at the ends show whether the template trims texts.
    if render(" a\n", "\tb ", None) != "".join(template.pair(" a\n", "\tb ", None)) + suffix:
        raise LoadError("the reranker's template changes the texts; expected one that renders them as they are")
    return template


def _between(text: str, *marks: str) -> tuple[str, ...] | None:
    """The parts of a text before, between and after marks; None unless each mark occurs once, in this order."""
    parts = []
    for mark in marks:
        if text.count(mark) != 1:
            return None
        before, _, text = text.partition(mark)
        parts.append(before)
    return (*parts, text)
