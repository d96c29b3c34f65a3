"""Models that ignore their limit of tokens: a text has a bound, and so has the number of responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hf_transformer.errors import PredictorError
from hf_transformer.generation.inputs import MIN_BOUND_BYTES, RESPONSE_BYTES, TOKEN_BYTES
from hf_transformer.generation.text import TextGenerator
from hf_transformer.generation.tokens import TokenGenerator
from hf_transformer.generation.types import Generator, Prompt, Sampling
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import ModelCall, Outputs
from hf_transformer.predictor.resilience import Resilience
from hf_transformer.tokenizer.tokenizer import load_tokenizer
from hf_transformer.types.tensors import ModelSpec
from tests.generation.scripted_models import ScriptedLLM, ids, model, settings, spec, steps, text
from tests.generation.test_text import ENSEMBLE, PLAIN, TUTORIAL, VLLM
from tests.generation.test_tokens import NEEDED, OUTPUTS
from tests.support.triton_repository import DEMO_MODEL

PROMPT = Prompt("hello", (7, 8))
TOKENS = 5
LIMIT = MIN_BOUND_BYTES + TOKENS * TOKEN_BYTES + len("hello")
FULL = model(NEEDED, OUTPUTS)
LLM_API = model(
    (spec("text_input", "BYTES"), spec("sampling_param_max_tokens")), (spec("text_output", "BYTES", -1),), batch=0
)


class EndlessLLM(ScriptedLLM):
    """Streams responses without end, and counts them."""

    def __init__(self, make: Callable[[int], Outputs]) -> None:
        super().__init__(make(1))
        self.make = make
        self.sent = 0
        self.closed = False

    async def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        try:
            while True:
                self.sent += 1
                assert self.sent < 100_000, "nothing ends it"
                yield self.make(self.sent)
        finally:
            self.closed = True


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def cumulative(count: int) -> Outputs:
    return text("x" * count)


@pytest.mark.parametrize(
    ("described", "make", "most"),
    [
        (VLLM, lambda _: text("x" * 1000), LIMIT // 1000 + 1),
        (VLLM, lambda _: text(""), LIMIT // RESPONSE_BYTES + 1),
        (VLLM, lambda _: {}, LIMIT // RESPONSE_BYTES + 1),
        (VLLM, lambda _: text("x" * 10**6), 1),
        (PLAIN, lambda _: text("hello"), LIMIT // RESPONSE_BYTES + 1),
        (ENSEMBLE, lambda _: text("é" * 500), LIMIT // 1000 + 1),
        (LLM_API, cumulative, LIMIT // RESPONSE_BYTES + 1),
        (LLM_API, lambda _: text("x" * 10**6), 1),
        (FULL, lambda _: ids(), LIMIT // RESPONSE_BYTES + 1),
        (FULL, lambda _: {}, LIMIT // RESPONSE_BYTES + 1),
    ],
    ids=[
        *("text", "empty", "nothing", "large", "prompt", "ensemble", "cumulative", "cumulative-large"),
        *("no-ids", "no-outputs"),
    ],
)
async def test_an_endless_text_is_an_error_and_ends_its_call(
    described: ModelSpec, make: Callable[[int], Outputs], most: int, executor: ThreadPoolExecutor
) -> None:
    inner, metrics = EndlessLLM(make), Metrics()
    predictor = Resilience(inner, "triton:8000", 60.0, metrics.of("m"), retries=0, retry_budget=1.0, circuit_failures=0)
    generator: Generator
    if described is FULL:
        generator = TokenGenerator(FULL, predictor, settings())
    else:
        tokenizer = load_tokenizer(DEMO_MODEL, {}, max_model_len=100)
        generator = TextGenerator(described, predictor, tokenizer, settings(), executor=executor)
    with pytest.raises(PredictorError, match=f"for a text of at most {TOKENS} tokens"):
        await steps(generator, PROMPT, Sampling(max_tokens=TOKENS))
    assert inner.sent <= most
    assert inner.closed
    assert b'predictor_errors_total{kind="error",model_name="m"} 1' in metrics.render().replace(b"1.0", b"1")


async def test_one_response_with_the_whole_text_is_bounded_too(executor: ThreadPoolExecutor) -> None:
    large = {"text": text("x" * 10**7)["text_output"]}
    predictor = Resilience(
        ScriptedLLM(large), "triton:8000", 60.0, Metrics().of("m"), retries=0, retry_budget=1.0, circuit_failures=0
    )
    tokenizer = load_tokenizer(DEMO_MODEL, {}, max_model_len=100)
    generator = TextGenerator(TUTORIAL, predictor, tokenizer, settings(), executor=executor)
    with pytest.raises(PredictorError, match="the predictor sent more than"):
        await steps(generator, PROMPT, Sampling(max_tokens=TOKENS))


async def test_a_token_model_s_padding_is_not_converted() -> None:
    """Ten million ids would be a list of 360 MB."""
    predictor = ScriptedLLM(ids(7, 8, 1, 3, 5, *[0] * 10_000_000))
    described = model(FULL.inputs, FULL.outputs, decoupled=False)
    written = await steps(TokenGenerator(described, predictor, settings()), PROMPT, Sampling(max_tokens=3))
    assert [list(step.ids) for step in written] == [[1, 3, 5]]
