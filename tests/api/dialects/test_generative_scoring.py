"""The first label's share of the probability, where labels are impossible."""

from __future__ import annotations

from math import exp, inf, log

import pytest

from hf_transformer.api.dialects.generative_scoring import first_share
from hf_transformer.errors import PredictorError


def test_an_impossible_label_has_no_share() -> None:
    assert first_share([log(0.2), -inf, log(0.6)], True) == pytest.approx(0.25)
    assert first_share([-inf, log(0.2)], True) == 0
    assert first_share([-inf, -inf], False) == 0
    assert first_share([-900.0, -900.0 - log(3)], True) == pytest.approx(0.75)
    assert first_share([-2.0, None], False) == pytest.approx(exp(-2))


def test_labels_that_are_all_impossible_are_the_model_s_fault() -> None:
    with pytest.raises(PredictorError, match="none of label_token_ids"):
        first_share([-inf, -inf], True)
