"""Asks vLLM's render servers for the answers in tests/goldens/vllm_derender.json, and writes them there.

As in vllm_render.py, the servers need neither weights nor a GPU. ``python -m scripts.goldens.vllm_derender FOLDER``
makes two further models: ``thinking`` has delimiters of reasoning and calls that are special tokens, ``pieces`` a
tokenizer in the manner of SentencePiece. Three servers, with VLLM_TARGET_DEVICE=cpu on a machine without a GPU:

    vllm launch render deploy/model_repository/gpt2 --served-model-name gpt2 --port 8001
    vllm launch render FOLDER/thinking --served-model-name thinking --port 8002 \\
        --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3
    vllm launch render FOLDER/pieces --served-model-name pieces --port 8003

Then ``python -m scripts.goldens.vllm_derender FOLDER VERSION URL URL URL``, in this order.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from scripts.goldens.vllm_render import PLAIN, ask

FILE: Final = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "vllm_derender.json"
DELIMITERS: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>")
NO_THINKING: Final = (
    "{%- if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
)
"""The end of Qwen 3's chat template."""
WORDS: Final = ("▁Paris", "▁is", "▁the", "▁capital", "▁of", "▁France", "Paris", ",", ".", "▁", "a", "b", "c", "é", "▁▁")


def _copy(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Copies the demo model gpt2 without its tokenizer.json, and changes its tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in PLAIN.glob("*.json"):
        shutil.copy(path, folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    change(settings)
    path.write_text(json.dumps(settings), encoding="utf-8")
    return folder


def _resize(folder: Path, tokenizer: Tokenizer) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"vocab_size": tokenizer.get_vocab_size()}
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


def make_thinking(folder: Path) -> Path:
    """The demo model with a chat template and special tokens in the manner of Qwen 3."""

    def change(settings: dict[str, Any]) -> None:
        settings["chat_template"] += NO_THINKING
        settings["extra_special_tokens"] += DELIMITERS

    _copy(folder, change)
    tokenizer = Tokenizer.from_file(str(PLAIN / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in DELIMITERS])
    return _resize(folder, tokenizer)


def make_pieces(folder: Path) -> Path:
    """The demo model with words that begin with ▁, and bytes in place of unknown characters."""

    def change(settings: dict[str, Any]) -> None:
        del settings["extra_special_tokens"]
        settings.update(tokenizer_class="PreTrainedTokenizerFast", bos_token="<s>", eos_token="</s>", unk_token="<unk>")

    special = ("<unk>", "<s>", "</s>")
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    tokenizer = Tokenizer(
        models.BPE({token: index for index, token in enumerate(tokens)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    _copy(folder, change)
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        config = json.loads(path.read_text(encoding="utf-8")) | {"eos_token_id": 2, "bos_token_id": 1}
        path.write_text(json.dumps(config), encoding="utf-8")
    return _resize(folder, tokenizer)


# Cases

CHAT, COMPLETIONS = "/v1/chat/completions/derender", "/v1/completions/derender"
USER: Final = {"role": "user", "content": "hello"}
TOOLS: Final = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("weather", "now")
]
PROMPT: Final = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
CALL: Final = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "note": "a } b"}}\n</tool_call>'
NOW: Final = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
THOUGHT: Final = "<think>\nthe user asks\n</think>\n\n"
ANSWERS: Final = {
    "text": "it is 7 o'clock in Zürich — 東京 🙂",
    "call": CALL,
    "text and call": "one moment\n" + CALL,
    "calls": CALL + "\n" + NOW,
    "reasoning": THOUGHT + "it is a fine day",
    "reasoning and call": THOUGHT + CALL,
    "reasoning and calls": THOUGHT + CALL + "\n" + NOW,
    "empty reasoning": "<think>\n\n</think>\n\nhello",
    "reasoning cut off": "<think>\nthe user",
    "reasoning over lines": "<think>\none\n\ntwo\n</think>\n\nthree\n\nfour",
}
LOGPROBS: Final = {"logprobs": True, "top_logprobs": 2}


@dataclass(frozen=True)
class Case:
    """A request, or the requests for the parts of a stream, whose ``body`` lacks the part and the state."""

    name: str
    model: str
    path: str
    body: Mapping[str, Any]
    chunks: Sequence[Mapping[str, Any]] = ()


def _choice(ids: Sequence[int], index: int = 0, **more: Any) -> dict[str, Any]:
    return {"index": index, "token_ids": list(ids), **more}


def _generated(*choices: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"request_id": "chatcmpl-1", "choices": list(choices), **more}


def _logprobs(ids: Sequence[int], top: int = 3) -> dict[str, Any]:
    content = [
        {
            "token_id": token,
            "logprob": -index / 8,
            "rank": 1,
            "top_logprobs": [
                {"token_id": other, "logprob": -index / 8 - rank, "rank": rank + 1}
                for rank, other in enumerate([token, token + 1, token + 2][:top])
            ],
        }
        for index, token in enumerate(ids)
    ]
    return {"content": content}


def _chunks(ids: Sequence[int], size: int, finish: str = "stop", *, logprobs: bool = False) -> list[dict[str, Any]]:
    """The parts of a stream of ``size`` tokens each, and one with the usage alone."""
    parts = [ids[start : start + size] for start in range(0, len(ids), size)]
    chunks = []
    for number, part in enumerate(parts):
        more = {"logprobs": _logprobs(part)} if logprobs else {}
        end = {"finish_reason": finish} if number == len(parts) - 1 else {}
        chunks.append(_generated(_choice(part, **more, **end)))
    usage = {"prompt_tokens": 5, "completion_tokens": len(ids), "total_tokens": 5 + len(ids)}
    return [*chunks, _generated(usage=usage)]


def plain_cases(encode: Callable[[str], list[int]]) -> Iterator[Case]:
    """Requests to the demo model gpt2, without parsers."""
    chat = {"model": "gpt2", "messages": [USER]}
    capital, text = encode("the capital of france"), encode(ANSWERS["text"])
    wide = encode("🙂")

    def case(
        name: str, choices: Sequence[Mapping[str, Any]], asked: Mapping[str, Any] | None = None, **more: Any
    ) -> Case:
        body = {"generate_response": _generated(*choices), **more}
        return Case(name, "gpt2", CHAT, body if asked is None else {**body, "chat_request": {**chat, **asked}})

    yield case("ids alone", [_choice(capital)])
    yield case("the prompt's tokens", [_choice(text)], prompt_tokens=7)
    yield case("choices", [_choice(capital), _choice(text, 1, finish_reason="length")], {"n": 2}, model="gpt2")
    yield case("an end token", [_choice([*capital, 2])])
    yield case("the tokenizer's end token", [_choice([*capital, 0])], {})
    yield case("an end token that is shown", [_choice([*capital, 2])], {"skip_special_tokens": False})
    yield case("special tokens that are shown", [_choice([1, *capital, 1, 2])], {"skip_special_tokens": False})
    yield case("special tokens", [_choice([1, *capital, 1, 305])], {})
    yield case("no end token", [_choice([*capital, 2], finish_reason="length")], {"skip_special_tokens": False})
    yield case("a reported token", [_choice([*capital, 305], stop_reason=305)], {})
    yield case("a requested token", [_choice([*capital, 305])], {"stop_token_ids": [305]})
    kept = {"stop_token_ids": [305], "include_stop_str_in_output": True}
    yield case("a kept token", [_choice([*capital, 305])], kept)
    yield case("ignored end", [_choice([*capital, 2])], {"ignore_eos": True, "skip_special_tokens": False})
    yield case("a reported string", [_choice(capital, stop_reason=" of")], {})
    yield case("a requested string", [_choice(capital)], {"stop": ["france", "l of"]})
    yield case("a kept string", [_choice(capital)], {"stop": " of", "include_stop_str_in_output": True})
    yield case("a string too early", [_choice(capital)], {"stop": ["cap"], "min_tokens": 4})
    yield case("a string after the first tokens", [_choice(capital)], {"stop": ["fr", "the"], "min_tokens": 2})
    yield case("a string and a length", [_choice(capital, finish_reason="length")], {"stop": ["cap"]})
    yield case("a part of a character", [_choice([*capital, *wide[:-1]], finish_reason="length")], {})
    yield case("a character after a broken one", [_choice([*wide[:2], *capital])], {})
    yield case("log probabilities", [_choice(text, logprobs=_logprobs(text))], LOGPROBS)
    yield case("the token alone", [_choice(capital, logprobs=_logprobs(capital))], {"logprobs": True})
    yield case("all log probabilities", [_choice(text, logprobs=_logprobs(text))])
    yield case("no wish for them", [_choice(capital, logprobs=_logprobs(capital))], {})
    yield case("no logprobs", [_choice(capital, logprobs={"content": None})], LOGPROBS)
    yield case("ids in the answer", [_choice(capital)], {"return_token_ids": True})
    yield case("an id without a token", [_choice([*capital, 5000, 305])], {})
    yield case("empty ids", [_choice([])], {})
    yield case("no ids", [{"index": 0}], {})
    yield case("a negative id", [_choice([1, -1])], {})
    yield case("too many ids", [_choice([305] * 257)], {})
    yield case("a prompt that is too long", [_choice([305])], {}, prompt_token_ids=[305] * 257)
    yield case("no choices", [], {})
    yield case("another model", [_choice(capital)], {}, model="other")
    more = {
        "prompt_logprobs": [None, {"305": {"logprob": -0.5, "rank": 1, "decoded_token": " capital"}}],
        "prompt_token_ids": [292, 305],
        "kv_transfer_params": {"a": 1},
    }
    asked = {**chat, "return_token_ids": True}
    yield Case(
        "passed fields",
        "gpt2",
        CHAT,
        {"generate_response": _generated(_choice(capital), **more), "chat_request": asked},
    )
    yield Case("nothing", "gpt2", CHAT, {})
    yield Case("text", "gpt2", CHAT, {"generate_response": _generated(_choice(capital), output_mode="text")})

    def several(name: str, answers: Sequence[Mapping[str, Any]], asked: Mapping[str, Any] | None, **more: Any) -> Case:
        request = {} if asked is None else {"completion_request": {"model": "gpt2", "prompt": "a", **asked}}
        return Case(name, "gpt2", COMPLETIONS, {"generate_responses": list(answers), **request, **more})

    two = [_generated(_choice(capital), _choice(text, 1)), _generated(_choice(text, finish_reason="length"))]
    ranked = [_generated(_choice(text, logprobs=_logprobs(text)))]
    yield several("prompts", two, None)
    yield several("prompts with their tokens", two, {}, prompt_tokens=[3, 4], prompt_token_ids=[[292], None])
    yield several("too few numbers", two, {}, prompt_tokens=[3])
    yield several("too few prompts", two, {}, prompt_token_ids=[[292]])
    yield several("no answers", [], {})
    yield several("empty ids of completions", [_generated(_choice([]))], {})
    yield several("log probabilities of completions", ranked, {"logprobs": 1})
    yield several("log probabilities without others", ranked, {"logprobs": 0})
    yield several("all log probabilities of completions", ranked, None)
    bare = [_generated(_choice(capital, logprobs=_logprobs(capital, 0)))]
    yield several("log probabilities without candidates", bare, {"logprobs": 2})
    yield several(
        "a string of completions", [_generated(_choice(capital))], {"stop": [" of"], "return_token_ids": True}
    )
    transfers = [_generated(_choice(capital), kv_transfer_params={"a": index}) for index in range(2)]
    yield several("different transfers", transfers, {})
    yield several("the same transfer", [transfers[0], transfers[0]], {})

    text = encode("7 o'clock — 東🙂")
    for size in (1, 3, 50):
        for path, name, request in (
            (CHAT, "chat_request", {**chat, **LOGPROBS, "return_token_ids": True}),
            (COMPLETIONS, "completion_request", {"model": "gpt2", "prompt": "a", "logprobs": 1}),
        ):
            parts = _chunks([*text, 2], size, logprobs=True)
            yield Case(f"stream by {size} {name}", "gpt2", path, {name: request, "prompt_tokens": 9}, parts)
    for path in (CHAT, COMPLETIONS):
        yield Case(f"stream with a broken end {path}", "gpt2", path, {}, _chunks([*capital, *wide[:-1]], 1, "length"))
        yield Case(f"stream without a request {path}", "gpt2", path, {}, _chunks([1, *capital, 1, *text], 2))
        both = _generated(_choice(capital), _choice(capital, 1))
        yield Case(f"stream with two choices {path}", "gpt2", path, {}, [both])
    yield Case("stream with a stop", "gpt2", CHAT, {"chat_request": {**chat, "stop": "x"}}, _chunks(capital, 9))
    yield Case(
        "stream with its end alone",
        "gpt2",
        CHAT,
        {},
        [*_chunks(capital, 2)[:2], _generated(_choice([], finish_reason="stop"))],
    )


def thinking_cases(encode: Callable[[str], list[int]]) -> Iterator[Case]:
    """Requests to the model with parsers."""
    prompt = encode(PROMPT)
    chat = {"model": "thinking", "messages": [USER], "tools": TOOLS}

    def case(name: str, text: str, asked: Mapping[str, Any], size: int = 0, end: Sequence[int] = (2,)) -> Case:
        ids = [*encode(text), *end]
        body = {"chat_request": {**chat, **asked}, "prompt_token_ids": prompt, "prompt_tokens": len(prompt)}
        finish = "stop" if end else "length"
        if size:
            return Case(f"{name} by {size}", "thinking", CHAT, body, _chunks(ids, size, finish))
        ranked = {"logprobs": _logprobs(ids)} if "logprobs" in asked else {}
        choice = _choice(ids, finish_reason=finish, **ranked)
        return Case(name, "thinking", CHAT, {**body, "generate_response": _generated(choice)})

    for name, text in ANSWERS.items():
        # vLLM's parser takes a text without an opening tag for reasoning, unless the request turns it off.
        plain = {} if "reasoning" in name else {"chat_template_kwargs": {"enable_thinking": False}}
        end = () if "cut off" in name else (2,)
        for size in (0, 3):
            yield case(name, text, plain, size, end)
    yield case("reasoning without tools", ANSWERS["reasoning"], {"tools": None})
    yield case("hidden reasoning", ANSWERS["reasoning and call"], {"include_reasoning": False, **LOGPROBS})
    yield case("hidden reasoning", ANSWERS["reasoning and call"], {"include_reasoning": False, **LOGPROBS}, 1)
    yield case("text", ANSWERS["text"], {"chat_template_kwargs": {"enable_thinking": False}}, 1)
    yield case("one call", ANSWERS["reasoning and calls"], {"parallel_tool_calls": False})
    yield case("one call", ANSWERS["reasoning and calls"], {"parallel_tool_calls": False}, 2)
    yield case("ids of reasoning", ANSWERS["reasoning"], {"return_token_ids": True, **LOGPROBS})
    named = {"tool_choice": {"type": "function", "function": {"name": "weather"}}}
    for name, asked in (("a named call", named), ("a required call", {"tool_choice": "required"})):
        yield case(name, ANSWERS["reasoning and call"], asked)
        yield case(name, ANSWERS["reasoning and call"], asked, 3)
    yield case("no choice of calls", ANSWERS["reasoning"], {"tool_choice": "none"})
    ids = encode(ANSWERS["reasoning"])
    yield Case("no chat", "thinking", CHAT, {"generate_response": _generated(_choice(ids))})
    yield Case("no chat by 2", "thinking", CHAT, {"prompt_token_ids": prompt}, _chunks(ids, 2)[:1])
    yield Case("no prompt by 2", "thinking", CHAT, {"chat_request": chat}, _chunks(ids, 2)[:1])
    long = {"chat_request": chat, "prompt_token_ids": [305] * 250}
    yield Case("a long prompt", "thinking", CHAT, long, [_generated(_choice([305] * 7))])


def pieces_cases(tokenizer: Tokenizer) -> Iterator[Case]:
    """Requests to the model whose tokens have ▁ in place of spaces."""

    def ids(*tokens: str) -> list[int]:
        return [tokenizer.token_to_id(token) for token in tokens]

    words = ids("▁is", "▁the", "▁capital", ",", "▁", "<0xE2>", "<0x82>", "<0xAC>", "▁▁", "b", "<0xF0>", "<0x9F>", "c")
    prompt, top = ids("<s>", "▁Paris"), {"messages": [USER], "model": "pieces", **LOGPROBS}
    whole = {"generate_response": _generated(_choice([*words, 2], logprobs=_logprobs(words)))}
    yield Case("words", "pieces", CHAT, {**whole, "chat_request": top, "prompt_token_ids": prompt})
    yield Case("words without their prompt", "pieces", CHAT, whole)
    fallback = _generated(_choice(words), prompt_token_ids=prompt)
    yield Case("the prompt of the answer", "pieces", COMPLETIONS, {"generate_responses": [fallback]})
    for path in (CHAT, COMPLETIONS):
        for size in (1, 2, 20):
            body = {"prompt_token_ids": prompt}
            yield Case(f"words by {size} {path}", "pieces", path, body, _chunks(words, size, logprobs=True))
    yield Case("words by 2 without their prompt", "pieces", CHAT, {}, _chunks(words, 2))


def cases(thinking: Path, pieces: Path) -> Iterator[Case]:
    """All requests; the tokenizers are those of the folders of two models."""
    plain, marked, words = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (PLAIN, thinking, pieces))
    yield from plain_cases(lambda text: list(plain.encode(text).ids))
    yield from thinking_cases(lambda text: list(marked.encode(text).ids))
    yield from pieces_cases(words)


def bodies(case: Case, answers: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The bodies of a case. ``answers`` has the answers to the bodies so far, whose state the next one repeats."""
    if not case.chunks:
        yield dict(case.body)
    for number, chunk in enumerate(case.chunks):
        state = answers[number - 1]["stream_state"] if number else None
        yield {**case.body, "stream": True, "generate_chunk": chunk, "stream_state": state}


def write(version: str, folder: Path, urls: Mapping[str, str]) -> None:
    """Asks the servers, and writes the requests with their answers."""
    rows = []
    for case in cases(folder / "thinking", folder / "pieces"):
        statuses, answers = [], list[Any]()
        for body in bodies(case, answers):
            status, answer = ask(urls[case.model], case.path, body)
            statuses.append(status)
            answers.append(answer)
            if status != 200:
                break
        row: dict[str, Any] = {"name": case.name, "model": case.model, "path": case.path, "body": case.body}
        if case.chunks:
            row["chunks"] = case.chunks
        row |= {"statuses": statuses, "answers": [_stored(answer) for answer in answers]}
        rows.append(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
    lines = ",\n".join(rows)
    FILE.write_text(f'{{\n"vllm": "{version}",\n"cases": [\n{lines}\n]\n}}\n', encoding="utf-8")


def _stored(value: Any) -> Any:
    """Leaves out null members, which are most of vLLM's, and the tokens so far, which each state repeats."""
    if isinstance(value, dict):
        left_out = ("output_token_ids", "output_chunk_lens")
        kept = {name: member for name, member in value.items() if member is not None and name not in left_out}
        return {name: _stored(member) for name, member in kept.items()}
    return [_stored(member) for member in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the answers of vLLM's derender routes.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the models thinking and pieces")
    parser.add_argument("version", nargs="?", metavar="VERSION", help="version of vLLM; without it, make the folder")
    parser.add_argument("urls", nargs="*", metavar="URL", help="URLs of gpt2, thinking and pieces")
    arguments = parser.parse_args()
    if arguments.version is None:
        make_thinking(arguments.folder / "thinking")
        make_pieces(arguments.folder / "pieces")
    elif len(arguments.urls) == 3:
        write(
            arguments.version, arguments.folder, dict(zip(("gpt2", "thinking", "pieces"), arguments.urls, strict=True))
        )
    else:
        parser.error("expected FOLDER, or FOLDER, VERSION and three URLs")


if __name__ == "__main__":
    main()
