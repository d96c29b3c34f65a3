"""V1's predict for text generation: the runtime guide's form, its defaults, and the stream in JSON lines."""

from __future__ import annotations

from typing import Any

import pytest

from hf_transformer.errors import PredictorError, PredictorUnavailable
from hf_transformer.generation.task import Text2TextGeneration
from hf_transformer.tasks.base import GenerationSettings
from tests.api.generating import PROMPT, Bench, bench, post

PATH, INFER = "/v1/models/gpt2:predict", "/v2/models/gpt2/infer"


async def predict(made: Bench, *instances: Any, status: int = 200, **parameters: Any) -> Any:
    found_status, found = await post(made, PATH, {"instances": instances or [PROMPT], "parameters": parameters})
    assert found_status == status, found
    return found["error"] if status != 200 else found


async def test_the_form_of_the_runtime_guide() -> None:
    async with bench() as made:
        found = await predict(made, max_length=50, temperature=0.7, do_sample=True)
        assert found == {"predictions": [[{"generated_text": f"{PROMPT} paris."}]]}
        [(prompt, sampling)] = made.generator.asked
        assert (sampling.greedy, sampling.temperature, sampling.top_k) == (False, 0.7, 50)
        assert sampling.max_tokens == 50 - len(prompt.ids)
        found = await predict(made, "A", {"text": "B"}, num_return_sequences=2, do_sample=True)
        assert found["predictions"] == [[{"generated_text": f"{one} paris."}] * 2 for one in "AB"]


async def test_the_service_s_defaults() -> None:
    settings = GenerationSettings(max_length=30, do_sample=True, temperature=0.5, top_k=3, top_p=0.9)
    async with bench(settings=settings) as made:
        await predict(made)
        await predict(made, do_sample=False)
        (prompt, first), (_, second) = made.generator.asked
        assert (first.greedy, first.temperature, first.top_k, first.top_p) == (False, 0.5, 3, 0.9)
        assert first.max_tokens == 30 - len(prompt.ids)
        assert second.greedy and (second.temperature, second.top_k, second.top_p) == (1.0, 0, 1.0)


async def test_who_says_how_to_draw_wants_it_drawn_and_new_tokens_alone_may_be_limited() -> None:
    async with bench() as made:
        for parameters, greedy in (
            ({}, True),
            ({"temperature": 0.7}, False),
            ({"seed": 3}, True),
            ({"temperature": 0, "do_sample": True}, True),
            ({"temperature": 0.7, "do_sample": False}, True),
        ):
            await predict(made, **parameters)
            assert made.generator.asked[-1][1].greedy is greedy
        for name in ("max_new_tokens", "max_tokens"):
            await predict(made, **{name: 2})
            assert made.generator.asked[-1][1].max_tokens == 2
            message = await predict(made, status=400, **{name: 2, "max_length": 30})
            assert message == f"parameters.max_length: can't be combined with {name}, which says what is new"


async def test_the_prompt_may_be_left_out() -> None:
    without = {"predictions": [[{"generated_text": " paris."}]]}
    async with bench() as made:
        assert await predict(made, return_full_text=False) == without
    async with bench(settings=GenerationSettings(return_full_text=False)) as made:
        assert await predict(made) == without
    async with bench(task=Text2TextGeneration) as made:
        assert await predict(made) == without
        assert "return_full_text: text2text_generation gives" in await predict(made, status=400, return_full_text=True)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"num_beams": 4}, "parameters.num_beams: unknown, expected one of output_format, max_length"),
        ({"max_length": 2}, "parameters.max_length: 2 tokens are to be enough"),
        ({"max_new_tokens": 2, "max_tokens": 2}, "parameters.max_tokens: means the same as max_new_tokens"),
        ({"stream": 1}, "parameters.stream: expected true or false, got a number"),
        ({"stream": True, "top_k": "x"}, "parameters.top_k: expected"),
        ({"temperature": True}, "parameters.temperature: expected a number, got a boolean"),
        ({"top_k": -2}, "parameters.top_k: -2 is too small, expected -1 or more"),
    ],
    ids=str,
)
async def test_what_is_wrong_is_named(parameters: dict[str, Any], says: str) -> None:
    async with bench() as made:
        assert (await predict(made, status=400, **parameters)).startswith(says)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"instances": ["a"], "inputs": ["a"]}, 400, 'body: expected "instances" or "inputs", got'),
        ({"instances": [None] * 100}, 400, 'instances[0]: expected a string or {"text": string}, got null'),
        # Lists that are too long whatever is in them are counted first.
        ({"instances": [None] * 101}, 413, "instances: 101 in a request, at most 100 are taken"),
        ({"instances": ["a"] * 9}, 413, "instances: 9 in a request, at most 8 are taken (--max_instances)"),
        ({"instances": ["a"] * 8}, 200, ""),
    ],
    ids=["both", "no text", "too many", "too many texts", "so many"],
)
async def test_bodies(body: dict[str, Any], status: int, says: str) -> None:
    async with bench() as made:
        found_status, found = await post(made, PATH, body)
        assert found_status == status and found.get("error", "").startswith(says), found


async def test_what_the_model_can_not_honour_is_named_as_it_was_sent() -> None:
    async with bench(honours=["greedy", "temperature"]) as made:
        message = await predict(made, status=400, min_new_tokens=3)
        assert message.startswith("parameters.min_new_tokens: this model is a tokens model, which can't honour it")
        message = await predict(made, status=400, do_sample=True)
        assert message.startswith("parameters.top_k (the service's --top_k): this model is")
        await predict(made, do_sample=True, top_k=0)


async def lines(made: Bench, *instances: Any, **parameters: Any) -> list[Any]:
    return list(await predict(made, *instances, stream=True, **parameters))


async def test_a_stream_is_a_line_per_piece() -> None:
    async with bench() as made:
        *pieces, last = await lines(made)
        assert len(pieces) > 1 and all(piece.keys() == {"instance", "text"} for piece in pieces)
        assert "".join(piece["text"] for piece in [*pieces, last]) == f"{PROMPT} paris."
        assert (last["instance"], last["finish_reason"], last["generated_text"]) == (0, "stop", f"{PROMPT} paris.")
        assert made.requests("v1", 200) == 1


async def test_lines_say_which_text_they_belong_to() -> None:
    async with bench() as made:
        found = await lines(made, "A", "B", num_return_sequences=2, do_sample=True)
        texts: dict[tuple[int, int], str] = {}
        for line in found:
            place = line["instance"], line["choice"]
            texts[place] = texts.get(place, "") + line["text"]
            if "finish_reason" in line:
                assert line["generated_text"] == texts[place]
        assert texts == {(0, 0): "A paris.", (0, 1): "A paris.", (1, 0): "B paris.", (1, 1): "B paris."}


async def test_errors_of_a_stream() -> None:
    async with bench(fails=PredictorUnavailable("it is down")) as made:
        assert await predict(made, status=503, stream=True) == "it is down"
    async with bench(fails=PredictorError("it broke"), after=1) as made:
        *_, last = await lines(made)
        assert last == {"error": "it broke"}
        assert made.requests("v1", 502) == 1


async def test_v2_gives_the_texts_as_a_tensor_and_no_stream() -> None:
    async with bench() as made:
        inputs = [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["A", "B"]}]
        for parameters, shape in (({}, [2]), ({"num_return_sequences": 2, "do_sample": True}, [2, 2])):
            status, found = await post(made, INFER, {"inputs": inputs, "parameters": parameters})
            [output] = found["outputs"]
            each = shape[-1] if len(shape) > 1 else 1
            assert (status, output["shape"]) == (200, shape)
            assert output["data"] == ["A paris."] * each + ["B paris."] * each
        status, found = await post(made, INFER, {"inputs": inputs, "parameters": {"stream": True}})
        assert status == 400 and found["error"].startswith("parameters.stream: one answer is given here")
