"""fill_mask with a model whose graph ends in the best tokens at the masks (``hf-transformer export --reduce``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from hf_transformer.errors import ConfigError, InvalidInput
from hf_transformer.tasks.base import Axis, OutputRole, TaskSettings
from hf_transformer.tasks.fill_mask import FillMask, FillMaskOptions
from hf_transformer.tasks.numerics import require_numbers
from hf_transformer.types import Array, Encoding, Json

IDS, SCORES = "topk_ids", "topk_scores"
MASKS = Axis(name="masks", minimum=0)
BEST = Axis(name="best tokens")


@dataclass(frozen=True, slots=True)
class ReducedFillMaskOptions(FillMaskOptions):
    """``exact`` refuses fewer tokens than ``top_k``, which a request has asked for then."""

    exact: bool = False


class ReducedFillMask(FillMask):
    """Reads ``topk_ids`` and ``topk_scores`` [masks, K]: the likeliest tokens of each mask, the best first, with their
    probabilities over the whole vocabulary.

    The masks are those of the longest text of the batch; a text's own come first. Answers are those of FillMask in the
    forms plain and pipeline; the others need the logits of the whole vocabulary, which do not come.
    """

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        for flag in ("return_probabilities", "return_raw_logits"):
            if getattr(settings, flag):
                raise ConfigError(f"--{flag}: the model gives its best tokens alone; export it without --reduce")

    @property
    def outputs(self) -> tuple[OutputRole, ...]:
        return (OutputRole(IDS, (MASKS, BEST), datatypes=("INT64", "INT32")), OutputRole(SCORES, (MASKS, BEST)))

    def options(self, parameters: Mapping[str, Json]) -> ReducedFillMaskOptions:
        options = super().options(parameters)
        if options.form in ("probabilities", "raw_logits"):
            raise InvalidInput(
                f"parameters.return_{options.form}: needs the whole vocabulary's logits, and the model was exported "
                "with --reduce"
            )
        if options.target_ids is not None:
            raise InvalidInput(
                "parameters.targets: needs the whole vocabulary's logits, and the model was exported with --reduce"
            )
        given = {field.name: getattr(options, field.name) for field in fields(options)}
        return ReducedFillMaskOptions(**given, exact="top_k" in parameters)

    def decode(self, item: str, encoding: Encoding, outputs: Mapping[str, Array], options: FillMaskOptions) -> Json:
        positions = self.mask_positions(encoding)
        best, scores = outputs[IDS][: len(positions)], outputs[SCORES][: len(positions)]
        require_numbers(scores)
        if options.form == "plain":
            return self.settings.vocabulary.decode(best[:, 0].tolist())
        if isinstance(options, ReducedFillMaskOptions) and options.exact and options.top_k > best.shape[1]:
            raise InvalidInput(
                f"parameters.top_k: {options.top_k}, and the model gives {best.shape[1]} tokens per mask "
                "(export --reduce --top_k)"
            )
        lists = [
            self.candidates(
                encoding, position, ids[: options.top_k].tolist(), row[: options.top_k].tolist(), alone=len(best) == 1
            )
            for position, ids, row in zip(positions, best, scores, strict=True)
        ]
        return lists[0] if len(lists) == 1 else lists
