"""Generated text over Triton's generate and generate_stream, and over V1 and V2, with a scripted model."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from hf_transformer.api.generate import EXTRA_OUTPUTS
from hf_transformer.api.service import Model, generative
from hf_transformer.errors import InvalidInput, PredictorError, PredictorUnavailable
from hf_transformer.generation.task import Text2TextGeneration
from hf_transformer.tasks.base import GenerationSettings
from tests.api.generating import PROMPT, ServedModel, answer_of, served_model
from tests.integration.api.grpc_model import ScriptedModel

SWITCHES: dict[str, Any] = dict.fromkeys(EXTRA_OUTPUTS.values(), True)
ROUTES = "/v2/models/gpt2", "/v2/models/gpt2/versions/1"
HEAD = {"model_name": "gpt2", "model_version": "1"}


async def generate(made: ServedModel, route: str = ROUTES[0], status: int = 200, **body: Any) -> Any:
    found = await answer_of(made, f"{route}/generate", {"text_input": PROMPT, **body}, status)
    return found["error"] if status != 200 else found


async def stream(made: ServedModel, route: str = ROUTES[0], **body: Any) -> list[Any]:
    found = await answer_of(made, f"{route}/generate_stream", {"text_input": PROMPT, **body})
    assert isinstance(found, list), "events, and not JSON"
    return found


async def test_requests_of_triton_s_clients_are_understood(made: ServedModel) -> None:
    assert await generate(made) == {**HEAD, "text_output": f"{PROMPT} paris."}
    assert made.requests("generate", 200) == 1
    for body in (
        {"parameters": {"max_tokens": 3, "temperature": 0.5}},
        {"max_tokens": 3, "temperature": 0.5},
        {"max_tokens": 3, "parameters": {"temperature": 0.5}},
    ):
        await generate(made, **body)
        sampling = made.generator.asked[-1][1]
        assert (sampling.max_tokens, sampling.temperature, sampling.greedy) == (3, 0.5, False)
    made.generator.asked.clear()
    # vLLM's and TensorRT-LLM's documents.
    await generate(made, parameters={"stream": False, "temperature": 0})
    answer = await generate(made, max_tokens=20, bad_words="", stop_words="", exclude_input_in_output=True)
    assert answer["text_output"] == " paris."
    assert made.generator.asked[0][1].greedy and made.generator.asked[1][1].stop == ()
    answer = await generate(made, id="17", stop_words=["ar"], return_full_text=False)
    assert answer == {"id": "17", **HEAD, "text_output": " p"}


@pytest.mark.parametrize("inside", [False, True], ids=["beside", "inside"])
async def test_tensorrt_llm_s_names_are_aliases(made: ServedModel, inside: bool) -> None:

    async def sampling(**given: Any) -> Any:
        await generate(made, **({"parameters": given} if inside else given))
        return made.generator.asked[-1][1]

    # The request in the documents of its backend.
    asked = await sampling(max_tokens=20, bad_words="", stop_words="", pad_id=2, end_id=2)
    assert asked.stop_token_ids == (2,) and not asked.ignore_eos
    asked = await sampling(random_seed=7, temperature=0.5, end_id=4, stop_token_ids=[3])
    assert (asked.seed, asked.stop_token_ids) == (7, (3, 4))
    asked = await sampling(end_id=-1, pad_id=None, random_seed=None)
    assert asked.ignore_eos and asked.stop_token_ids == () and asked.seed is None
    assert (await sampling(end_id=5, random_seed=8, seed=8, temperature=0.5)).seed == 8


async def test_sampling_parameters_are_read_as_in_vllm_s_backend(made: ServedModel) -> None:
    fields = {"max_tokens": "3", "temperature": 0.5, "top_k": None, "best_of": 1, "skip_special_tokens": True}
    await generate(made, sampling_parameters=json.dumps(fields), parameters={"temperature": 0.5})
    [(_, sampling)] = made.generator.asked
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k) == (3, 0.5, 0)
    await generate(made, parameters={"sampling_parameters": json.dumps({**fields, "top_k": "7"})}, best_of=1, n="1")
    assert made.generator.asked[1][1].top_k == 7


async def test_extra_outputs_of_a_whole_response(made: ServedModel) -> None:
    answer = await generate(made, **SWITCHES, max_tokens=2, exclude_input_in_output=True)
    assert answer == {
        **HEAD,
        "text_output": " paris",
        "finish_reason": "length",
        "num_input_tokens": len(made.tokenizer.encode([PROMPT])[0].ids),
        "num_output_tokens": 2,
    }
    answer = await generate(made, return_finish_reason=True, n=2, temperature=0.5)
    assert (answer["finish_reason"], answer["text_output"]) == (["stop"] * 2, [f"{PROMPT} paris."] * 2)
    assert "finish_reason" not in await generate(made, return_finish_reason=False)


async def test_extra_outputs_of_a_stream_add_up(made: ServedModel) -> None:
    [whole] = await stream(made, **SWITCHES, stream=False)
    *before, last = events = await stream(made, **SWITCHES)
    assert last["finish_reason"] == "stop" and {event["finish_reason"] for event in before} == {"None"}
    assert {event["num_input_tokens"] for event in events} == {whole["num_input_tokens"]}
    assert sum(event["num_output_tokens"] for event in events) == whole["num_output_tokens"] > 0
    events = await stream(made, **SWITCHES, n=2, temperature=0.5)
    for choice in (0, 1):
        of_choice = [event for event in events if event["choice"] == choice]
        assert "".join(event["text_output"] for event in of_choice) == " paris."
        assert sum(event["num_output_tokens"] for event in of_choice) == whole["num_output_tokens"]
        assert of_choice[-1]["finish_reason"] == "stop"


async def test_a_stream_has_new_text_and_at_least_one_event_per_text(made: ServedModel) -> None:
    for extra in ({}, {"stream": True}, {"parameters": {"stream": True}}):
        events = await stream(made, **extra)
        assert len(events) > 1 and all(event.keys() == {*HEAD, "text_output"} for event in events)
        assert "".join(event["text_output"] for event in events) == " paris."
    events = await stream(made, exclude_input_in_output=False)
    assert "".join(event["text_output"] for event in events) == f"{PROMPT} paris."
    assert await stream(made, stream=False) == [{**HEAD, "text_output": " paris."}]
    for stop, whole in (("ris", None), (" par", False)):
        events = await stream(made, stop=stop, exclude_input_in_output=whole)
        assert events and all(event["text_output"] for event in events), "no event is empty beside others"
    empty = {**HEAD, "text_output": ""}
    assert await stream(made, stop=" par") == await stream(made, stop=" par", stream=False) == [empty]
    events = await stream(made, stop=" par", n=2, temperature=0.5)
    assert sorted(events, key=lambda event: event["choice"]) == [{**empty, "choice": 0}, {**empty, "choice": 1}]
    async with served_model(fails=PredictorError("it broke"), after=1) as made:
        assert (await stream(made))[-1] == {"error": "it broke"}
        assert await generate(made, status=502) == "it broke"


async def test_a_list_of_one_prompt_is_a_prompt(made: ServedModel) -> None:
    assert await generate(made, text_input=[PROMPT]) == await generate(made)
    assert await stream(made, text_input=[PROMPT]) == await stream(made)


SIZE = "a token id, or -1 for none"
OF_VLLM = "sampling_parameters"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"stream": True}, "stream: expected false, since this API does not stream, got true; "),
    ({"parameters": {"stream": True}}, "parameters.stream: expected false"),
    ({"parameters": {"top_q": 1}}, "parameters.top_q: expected one of max_tokens"),
    ({"top_k": 3, "parameters": {"top_k": 4}}, "parameters.top_k: expected one value, got two"),
    (
        {"parameters": {"bad_words": ["x"]}},
        'parameters.bad_words: expected "" or [], got a list; the service can\'t exclude',
    ),
    (
        {"exclude_input_in_output": True, "return_full_text": True},
        "exclude_input_in_output: expected one value, got another one in return_full_text",
    ),
    ({"text_input": ""}, "text_input: expected a prompt of at least one token"),
    ({OF_VLLM: {"top_k": 1}}, f"{OF_VLLM}: expected JSON text, got an object"),
    ({OF_VLLM: "{"}, f"{OF_VLLM}: expected JSON text; "),
    ({OF_VLLM: "[]"}, f"{OF_VLLM}: expected a JSON object, got a list"),
    ({OF_VLLM: '{"best_of": 2}'}, f"{OF_VLLM}.best_of: expected 1, got 2"),
    (
        {"parameters": {OF_VLLM: '{"skip_special_tokens": 0}'}},
        f"parameters.{OF_VLLM}.skip_special_tokens: expected true",
    ),
    ({OF_VLLM: "{}", "parameters": {OF_VLLM: ""}}, f"{OF_VLLM}: expected one value, got another one in parameters"),
    ({OF_VLLM: '{"top_k": 3}', "top_k": 4}, f"{OF_VLLM}.top_k: expected one value, got two"),
    ({OF_VLLM: '{"max_tokens": "many"}'}, f"{OF_VLLM}.max_tokens: expected a whole number, got a string"),
    ({OF_VLLM: '{"random_seed": "x"}'}, f"{OF_VLLM}.random_seed: expected a"),
    ({"parameters": {"pad_id": 1.5}}, f"parameters.pad_id: expected {SIZE}, got a number"),
    ({"end_id": 10**6}, "end_id: expected token ids from 0 to 767, got 1000000"),
    ({"parameters": {"end_id": 10**6}}, "parameters.end_id: expected token ids from 0 to 767, got 1000000"),
    ({"random_seed": 1, "seed": 2}, "random_seed: expected one value, got another one in seed"),
    ({"end_id": -1, "ignore_eos": False}, "end_id: expected one value, got another one in ignore_eos"),
]


async def test_errors_begin_with_the_client_s_path(made: ServedModel) -> None:
    for body, says in WRONG:
        message = await generate(made, status=400, **body)
        assert message.startswith(says), (body, message)
    assert not made.generator.asked
    message = await generate(made, status=413, stop_words=[1] * 17)
    assert message == "stop_words: expected at most 16 strings, got 17", "counted before the elements are read"


async def test_unknown_models_and_versions_are_404(made: ServedModel) -> None:
    assert (await generate(made, ROUTES[1]))["model_version"] == "1"
    message = await generate(made, f"{ROUTES[0]}/versions/2", 404)
    assert message == "expected version '1' of model 'gpt2', got version '2'"
    assert await generate(made, "/v2/models/bert", 404) == "expected a served model (gpt2), got 'bert'"


async def test_new_tokens_are_limited() -> None:
    async with served_model(settings=GenerationSettings(max_length=20, max_new_tokens=8)) as made:
        await generate(made)
        assert made.generator.asked[0][1].max_tokens == 8
        message = await generate(made, status=413, max_tokens=9)
        assert message == "max_tokens: expected at most 8 new tokens (--max_new_tokens), got 9"
        message = await generate(made, status=413, parameters={"max_length": 10})
        assert message == "parameters.max_length: expected at most 8 new tokens (--max_new_tokens), got 10"


async def test_the_error_of_a_predictive_model_names_its_task() -> None:
    with pytest.raises(InvalidInput) as raised:
        generative(cast(Model, ScriptedModel()), "generate")
    expected = "expected a model for text_generation or text2text_generation, which generate needs"
    assert str(raised.value) == f"{expected}, got 'bert' for fill_mask" and raised.value.path == ()


# V1's predict: the runtime guide's form, its defaults, and the stream in JSON lines


PATH, INFER = "/v1/models/gpt2:predict", "/v2/models/gpt2/infer"


async def predict(made: ServedModel, *instances: Any, status: int = 200, **parameters: Any) -> Any:
    found = await answer_of(made, PATH, {"instances": instances or [PROMPT], "parameters": parameters}, status)
    return found["error"] if status != 200 else found


async def test_predict_has_the_form_of_kserve_s_runtime_guide(made: ServedModel) -> None:
    answer = await predict(made, max_length=50, temperature=0.7, do_sample=True)
    assert answer == {"predictions": [[{"generated_text": f"{PROMPT} paris."}]]}
    [(prompt, sampling)] = made.generator.asked
    assert (sampling.greedy, sampling.temperature, sampling.top_k) == (False, 0.7, 50)
    assert sampling.max_tokens == 50 - len(prompt.ids)
    answer = await predict(made, "A", {"text": "B"}, num_return_sequences=2, do_sample=True)
    assert answer["predictions"] == [[{"generated_text": f"{letter} paris."}] * 2 for letter in "AB"]


async def test_requests_override_the_service_s_generation_defaults() -> None:
    settings = GenerationSettings(max_length=30, do_sample=True, temperature=0.5, top_k=3, top_p=0.9)
    async with served_model(settings=settings) as made:
        await predict(made)
        await predict(made, do_sample=False)
        (prompt, first), (_, second) = made.generator.asked
        assert (first.greedy, first.temperature, first.top_k, first.top_p) == (False, 0.5, 3, 0.9)
        assert first.max_tokens == 30 - len(prompt.ids)
        assert second.greedy and (second.temperature, second.top_k, second.top_p) == (1.0, 0, 1.0)


async def test_sampling_parameters_imply_do_sample_and_limits_exclude_each_other(made: ServedModel) -> None:
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
        assert message == f"parameters.max_length: expected either max_length or {name}, got both"


async def test_return_full_text_excludes_the_prompt() -> None:
    without = {"predictions": [[{"generated_text": " paris."}]]}
    async with served_model() as made:
        assert await predict(made, return_full_text=False) == without
    async with served_model(settings=GenerationSettings(return_full_text=False)) as made:
        assert await predict(made) == without
    async with served_model(task=Text2TextGeneration) as made:
        assert await predict(made) == without
        message = await predict(made, status=400, return_full_text=True)
        assert (
            message.startswith("parameters.return_full_text: expected false, got true")
            and "text2text_generation" in message
        )


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"num_beams": 4}, "parameters.num_beams: expected one of max_tokens, max_new_tokens"),
        ({"max_length": 2}, "parameters.max_length: expected more than the "),
        ({"max_new_tokens": 2, "max_tokens": 2}, "parameters.max_tokens: expected "),
        ({"stream": 1}, "parameters.stream: expected true or false, got a number"),
        ({"stream": True, "top_k": "x"}, "parameters.top_k: expected"),
        ({"temperature": True}, "parameters.temperature: expected a number from 0 to 100, got a boolean"),
        ({"top_k": -2}, "parameters.top_k: "),
    ],
    ids=str,
)
async def test_errors_of_v1_name_the_parameter(made: ServedModel, parameters: dict[str, Any], says: str) -> None:
    assert (await predict(made, status=400, **parameters)).startswith(says)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"instances": ["a"], "inputs": ["a"]}, 400, 'body: expected "instances" or "inputs", got both'),
        ({"instances": [None] * 12}, 400, 'instances[0]: expected a string or {"text": string}, got null'),
        # Lists are counted before their elements are read.
        ({"instances": [None] * 13}, 413, "instances: expected at most 12 in a request"),
        ({"instances": ["a"] * 9}, 413, "instances: "),
        ({"instances": ["a"] * 8}, 200, ""),
    ],
    ids=["both", "no text", "too many", "too many texts", "so many"],
)
async def test_instances_are_counted_in_one_field(
    made: ServedModel, body: dict[str, Any], status: int, says: str
) -> None:
    found = await answer_of(made, PATH, body, status)
    assert found.get("error", "").startswith(says), found


async def test_an_unsupported_parameter_has_the_client_s_name_or_the_flag_s() -> None:
    async with served_model(supported_fields=["greedy", "temperature"]) as made:
        message = await predict(made, status=400, min_new_tokens=3)
        assert message.startswith(
            "parameters.min_new_tokens: expected a parameter that this tokens model supports; leave"
        )
        message = await predict(made, status=400, do_sample=True)
        assert message.startswith("parameters.top_k: expected") and message.endswith("; the service's --top_k sets it")
        await predict(made, do_sample=True, top_k=0)


async def lines(made: ServedModel, *instances: Any, **parameters: Any) -> list[Any]:
    return list(await predict(made, *instances, stream=True, **parameters))


async def test_a_stream_is_a_line_per_piece(made: ServedModel) -> None:
    *pieces, last = await lines(made)
    assert len(pieces) > 1 and all(piece.keys() == {"instance", "text"} for piece in pieces)
    assert "".join(piece["text"] for piece in [*pieces, last]) == f"{PROMPT} paris."
    assert (last["instance"], last["finish_reason"], last["generated_text"]) == (0, "stop", f"{PROMPT} paris.")
    assert made.requests("v1", 200) == 1


async def test_lines_have_the_index_of_their_text(made: ServedModel) -> None:
    found = await lines(made, "A", "B", num_return_sequences=2, do_sample=True)
    texts: dict[tuple[int, int], str] = {}
    for line in found:
        place = line["instance"], line["choice"]
        texts[place] = texts.get(place, "") + line["text"]
        if "finish_reason" in line:
            assert line["generated_text"] == texts[place]
    assert texts == {(0, 0): "A paris.", (0, 1): "A paris.", (1, 0): "B paris.", (1, 1): "B paris."}


async def test_an_error_in_a_stream_is_its_last_line() -> None:
    async with served_model(fails=PredictorUnavailable("it is down")) as made:
        assert await predict(made, status=503, stream=True) == "it is down"
    async with served_model(fails=PredictorError("it broke"), after=1) as made:
        *_, last = await lines(made)
        assert last == {"error": "it broke"}
        assert made.requests("v1", 502) == 1


async def test_v2_returns_texts_as_a_tensor_and_refuses_streams(made: ServedModel) -> None:
    inputs = [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["A", "B"]}]
    for parameters, shape in (({}, [2]), ({"num_return_sequences": 2, "do_sample": True}, [2, 2])):
        [output] = (await answer_of(made, INFER, {"inputs": inputs, "parameters": parameters}))["outputs"]
        each = shape[-1] if len(shape) > 1 else 1
        assert output["shape"] == shape
        assert output["data"] == ["A paris."] * each + ["B paris."] * each
    found = await answer_of(made, INFER, {"inputs": inputs, "parameters": {"stream": True}}, 400)
    assert found["error"].startswith("parameters.stream: expected false, since this API does not stream")
