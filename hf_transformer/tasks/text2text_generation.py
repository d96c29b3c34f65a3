"""text2text_generation: texts -> others that are written after them, such as summaries and translations."""

from __future__ import annotations

from hf_transformer.tasks.text_generation import PARAMETERS as PARAMETERS
from hf_transformer.tasks.text_generation import TextGeneration


class Text2TextGeneration(TextGeneration):
    """An encoder-decoder, such as T5 and BART: the prompt is read, and another text is written.

    Parameters and answers are those of text_generation, but the prompt is never part of an answer, and ``max_length``
    bounds the answer alone.
    """

    name = "text2text_generation"
    other_names = ("summarization", "translation")
    knows_full_text = False
