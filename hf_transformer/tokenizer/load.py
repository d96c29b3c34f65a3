"""Loads a folder's tokenizer, and determines its limit in tokens.

The result equals that of transformers' AutoTokenizer, but without importing transformers, which takes two seconds. The
steps follow PreTrainedTokenizerBase._from_pretrained and TokenizersBackend.__init__ in transformers 5.24. transformers
itself loads folders without tokenizer.json, with a rare class, or with custom code (NotMirrored).
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
from tokenizers import AddedToken, Tokenizer, processors

from hf_transformer.errors import LoadError
from hf_transformer.extras import install_command
from hf_transformer.tokenizer.files import BYTES_PER_VALUE, MAX_FILE_BYTES, read_counted, read_json
from hf_transformer.tokenizer.recipes import RECIPES, Recipe, tokenizer_class
from hf_transformer.types.request import Json

log = logging.getLogger(__name__)

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Names of the special tokens in tokenizer_config.json."""
NO_FILE = "it has no tokenizer.json"
DEFAULT_MAX_LENGTH = 512
"""Default limit in tokens if neither tokenizer nor model defines a limit, as for BERT and most encoders."""
NO_LIMIT = 10**12
"""Values from this number on mean no limit: transformers writes int(1e30)."""

LENGTH_KEYS = (
    "max_position_embeddings n_positions max_seq_len seq_length model_max_length max_sequence_length max_seq_length"
    " seq_len"
).split()
"""Keys in config.json for the maximum sequence length. The smallest value applies."""

OFFSET_POSITIONS = frozenset(
    "altclip bridgetower camembert clap data2vec-text ibert layoutlmv3 lilt longformer luke markuplm mpnet roberta"
    " roberta-prelayernorm xlm-roberta xlm-roberta-xl xmod".split()
)
"""Model types with positions that begin at padding_idx + 1. They don't use the first padding_idx + 1 position
embeddings.

Source: create_position_ids_from_input_ids in transformers' modeling_roberta.py and similar models.
"""

STAGES = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
"""Keys of tokenizer.json for the stages beside the model."""
LEFT_PADDED = ("XLNetTokenizer", "LlamaTokenizer")
"""Classes that pad on the left by default."""

MAX_GROWTH = 100
"""Maximum growth factor of a text by normalization or decoding. Without it, 400 characters can take gigabytes.

Unicode normalization expands an Arabic ligature to 18 characters, and an HTML escape has up to six characters.
"""


MAX_STEPS = 256
"""Maximum number of a normalizer's or decoder's steps. Those of known models have ten."""
MAX_LENGTH = 2**24
"""Upper bound of a limit in tokens from the files, since some texts are padded to the limit."""


class NotMirrored(Exception):
    """Raised if only transformers can load the folder. The message has the reason."""


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """A tokenizer and its settings.

    Attributes:
        backend: the Rust tokenizer; None for a tokenizer written in Python.
        size: the highest token id plus one.
        tokens: the special tokens by names such as ``pad_token``.
        padding_side, truncation_side: ``left`` or ``right``.
        model_max_length: the limit in tokens; None if unset.
        cleans_up: whether decoding removes spaces before punctuation.
        source: the origin of the ids in words: tokenizer.json, a class with its vocabulary, or transformers.
        file: the path of tokenizer.json; None without one.
        slow: transformers' tokenizer; None if the Rust library loaded the tokenizer.
    """

    backend: Tokenizer | None
    size: int
    tokens: Mapping[str, str]
    padding_side: str
    truncation_side: str
    model_max_length: int | None
    cleans_up: bool
    source: str
    slow: Any = None
    file: Path | None = None


def load_folder(
    folder: Path,
    config: Mapping[str, Json],
    *,
    lower_case: bool,
    trust_remote_code: bool,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> LoadedTokenizer:
    """Loads a folder's tokenizer from files of at most ``max_file_bytes`` bytes. Raises LoadError.

    Runs custom code only with ``trust_remote_code``.
    """
    reason, loaded = NO_FILE, None
    settings = read_counted(folder / "tokenizer_config.json", required=False)
    if (folder / "tokenizer.json").is_file():
        try:
            loaded = load_fast(folder, config, lower_case=lower_case, settings=settings, max_file_bytes=max_file_bytes)
        except NotMirrored as exc:
            reason = f"its tokenizer.json is not read alone: {exc}"
    if loaded is None:
        loaded = _load_with_transformers(folder, reason, lower_case=lower_case, trust_remote_code=trust_remote_code)
    if loaded.size > (largest := max_file_bytes // BYTES_PER_VALUE):
        raise LoadError(f"the tokenizer in {folder}: expected token ids below {largest}, got {loaded.size - 1}")
    log.info("the tokenizer in %s is that of %s", folder, loaded.source)
    for stage in () if loaded.backend is None else (loaded.backend.normalizer, loaded.backend.decoder):
        if stage is not None and (growth := growth_of(orjson.loads(stage.__getstate__()))) > MAX_GROWTH:
            raise LoadError(
                f"the tokenizer in {folder} makes a text up to {growth:g} times as long, expected {MAX_GROWTH} at "
                f"most: see the {type(stage).__name__} in its tokenizer.json"
            )
    return loaded


def growth_of(state: Json) -> float:
    """Upper bound of the growth factor of a text in the steps of a normalizer or decoder.

    Growth factors of two steps multiply only if the output of the earlier step contains the pattern of the later one.
    """
    steps = [step for step in _steps(state) if step[2]]
    if len(steps) > MAX_STEPS:
        raise LoadError(f"tokenizer.json: expected at most {MAX_STEPS} steps that replace text, got {len(steps)}")
    chains: list[float] = []
    for index, (pattern, growth, _) in enumerate(steps):
        before = [chains[earlier] for earlier in range(index) if pattern is None or pattern in steps[earlier][2]]
        chains.append(growth * max(before, default=1.0))
    return max(chains, default=1.0)


def _steps(state: Json) -> list[tuple[str | None, float, str]]:
    """Steps as tuples: replaced text (None for a pattern), growth factor, replacement."""
    kind = state.get("type")
    if kind == "Sequence":
        return [step for inner in state.get("normalizers", state.get("decoders", ())) for step in _steps(inner)]
    if kind == "Replace":
        text, content = state["pattern"].get("String"), state["content"]
        growth = max(1.0, len(content) / max(len(text or ""), 1))
        return [(text, growth + (text == ""), content)]  # an empty pattern matches next to each character
    if kind == "Prepend":  # to each piece between added tokens
        return [(None, 1.0 + len(state["prepend"]), state["prepend"])]
    if kind == "Precompiled":  # SentencePiece's format: a trie, then zero-terminated texts (normalizer.cc)
        blob = base64.b64decode(state["precompiled_charsmap"] or "")
        texts = blob[4 + int.from_bytes(blob[:4], "little") :].decode(errors="replace").split("\0")
        longest = max(texts, key=len)
        return [(None, max(1.0, len(longest)), longest)]
    return []


def load_fast(
    folder: Path,
    config: Mapping[str, Json],
    *,
    lower_case: bool,
    settings: dict[str, Json] | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> LoadedTokenizer:
    """Loads a folder's tokenizer.json. Raises NotMirrored, and LoadError for invalid JSON.

    ``settings`` is the content of tokenizer_config.json if it is read already.
    """
    if settings is None:
        settings = read_counted(folder / "tokenizer_config.json", required=False)
    document = read_json(folder / "tokenizer.json", required=True, limit=max_file_bytes, flag="--max_model_file_bytes")
    try:
        byte_level = b'"ByteLevel"' in orjson.dumps([document.get(stage) for stage in STAGES])
    except TypeError as exc:  # nested too deep
        raise NotMirrored(f"tokenizer.json: {exc}") from exc
    # Without transformers, a model type that is missing in recipes.py counts as one without a registered class.
    name = tokenizer_class(config, settings, byte_level=byte_level, any_type=find_spec("transformers") is None)
    if name is None:
        raise NotMirrored(f"tokenizer class {settings.get('tokenizer_class')!r}, model {config.get('model_type')!r}")
    if settings.keys() & {"fast_tokenizer_files", "init_inputs", "fix_mistral_regex"}:
        raise NotMirrored("tokenizer_config.json has rare settings")
    if not lower_case:
        settings["do_lower_case"] = False
        document["normalizer"] = without_lower_case(document.get("normalizer"))
    try:
        return _build(name, settings, document, folder)
    except Exception as exc:  # the Rust library raises bare Exception for a broken file
        if type(exc) is Exception or isinstance(exc, TypeError | ValueError | KeyError | AttributeError | OSError):
            raise NotMirrored(f"{name}: {exc}") from exc
        raise


def without_lower_case(normalizer: Json) -> Json:
    """Removes lower-casing from the normalizer of a tokenizer.json."""
    if not isinstance(normalizer, dict) or normalizer.get("type") == "Lowercase":
        return None
    if normalizer.get("type") == "BertNormalizer":
        return {**normalizer, "lowercase": False}
    if "normalizers" in normalizer:
        kept = (without_lower_case(step) for step in normalizer["normalizers"])
        return {**normalizer, "normalizers": [step for step in kept if step is not None]}
    return normalizer


def _build(name: str, settings: dict[str, Json], document: dict[str, Json], folder: Path) -> LoadedTokenizer:
    added = _merge_older_files(settings, document, folder)
    recipe = RECIPES.get(name)
    if recipe is not None:
        _default_extra(settings, recipe, name)
    named = _named_tokens(settings, recipe, {token.content: token for token in added.values()})
    for section, key in (("truncation", "truncation_side"), ("padding", "padding_side")):
        if document.get(section):
            # Files from before 2021 have no truncation direction.
            settings.setdefault(key, document[section].get("direction", "Right").lower())
    if recipe is None and document.get("padding"):
        named.setdefault("pad_token", document["padding"]["pad_token"])
    vocab = document["model"]["vocab"]
    highest = len(vocab) - 1 if isinstance(vocab, list) else max(vocab.values(), default=-1)
    # Free Python's copy of the vocabulary, which takes megabytes. Only the Rust library uses it below.
    del vocab
    backend = _backend(recipe, settings, document, named)
    extra = settings.get("extra_special_tokens") or []
    backend.encode_special_tokens = bool(settings.get("split_special_tokens", False))
    _add_tokens(backend, added, named, extra)
    if backend.post_processor is None:
        backend.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    tokens = {key: str(token) for key, token in named.items()}
    if recipe is not None and recipe.finish is not None:
        recipe.finish(backend, settings, tokens)
    if name == "Qwen2Tokenizer":
        backend.add_tokens([AddedToken(text, special=True) for text in (*tokens.values(), *map(str, extra))])
    sides = (
        settings.get("padding_side", "left" if name in LEFT_PADDED else "right"),
        settings.get("truncation_side", "right"),
    )
    if not {*sides} <= {"left", "right"}:
        raise ValueError(f"padding_side and truncation_side must be left or right, not {sides}")
    cleans_up = settings.get("clean_up_tokenization_spaces", False)
    if type(backend.model).__name__ == "BPE":  # transformers ignores the setting for BPE unless it is forced
        cleans_up = cleans_up and settings.get(
            "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
        )
    return LoadedTokenizer(
        backend,
        1 + max(highest, *backend.get_added_tokens_decoder(), -1),
        {key: token for key, token in tokens.items() if key in NAMED},
        sides[0],
        sides[1],
        settings.get("model_max_length", settings.get("max_len")),
        bool(cleans_up),
        "its tokenizer.json" if recipe is None else f"the class {name}, with the vocabulary of its tokenizer.json",
        file=folder / "tokenizer.json",
    )


def _merge_older_files(settings: dict[str, Json], document: Mapping[str, Json], folder: Path) -> dict[int, AddedToken]:
    """Returns the added tokens by id. Adds the settings of the older special_tokens_map.json to ``settings`` in
    place."""
    if settings.get("additional_special_tokens") is not None and not settings.get("extra_special_tokens"):
        settings["extra_special_tokens"] = settings.pop("additional_special_tokens")
    added: dict[int, AddedToken] = {}
    if "added_tokens_decoder" in settings:
        added = {int(number): AddedToken(**token) for number, token in settings["added_tokens_decoder"].items()}
    else:
        for key, value in read_json(folder / "special_tokens_map.json", required=False).items():
            settings[key] = _from_map(key, value, settings)
        special = {_text(settings[key]) for key in NAMED if settings.get(key)}
        special |= {_text(token) for token in settings.get("extra_special_tokens") or []}
        for text, number in read_json(folder / "added_tokens.json", required=False).items():
            is_special = text in special
            added[number] = AddedToken(text, normalized=not is_special, special=is_special)
        for entry in document.get("added_tokens") or []:
            added[entry["id"]] = AddedToken(**{key: value for key, value in entry.items() if key != "id"})
    if "extra_special_tokens" not in settings and settings.get("additional_special_tokens") is not None:
        settings["extra_special_tokens"] = settings.pop("additional_special_tokens")
    return added


def _from_map(key: str, value: Json, settings: Mapping[str, Json]) -> Json:
    if key == "extra_special_tokens" and isinstance(value, list):
        tokens = [AddedToken(**{**token, "special": True}) if isinstance(token, dict) else token for token in value]
        before = settings.get("extra_special_tokens") or []
        known = {_text(old) for old in before}
        return [*before, *(token for token in tokens if _text(token) not in known)]
    if isinstance(value, dict) and key != "extra_special_tokens":
        return AddedToken(**{**value, "special": True})
    return value


def _text(token: Json) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _default_extra(settings: dict[str, Json], recipe: Recipe, name: str) -> None:
    """Adds the default extra tokens of T5 and CamemBERT to the settings."""
    defaults = recipe.extra
    if name == "T5Tokenizer":
        count = settings.get("extra_ids", 100)
        extra = settings.get("extra_special_tokens")
        if extra is not None and sum("<extra_id_" in _text(token) for token in extra) != count:
            raise NotMirrored("the number of <extra_id_> tokens is not extra_ids")
        defaults = tuple(f"<extra_id_{number}>" for number in range(count))
    if defaults and settings.get("additional_special_tokens") is not None:
        raise NotMirrored("both kinds of extra special tokens")
    settings.setdefault("extra_special_tokens", list(defaults))


def _named_tokens(
    settings: dict[str, Json], recipe: Recipe | None, added: Mapping[str, AddedToken]
) -> dict[str, str | AddedToken]:
    """Special tokens by name, in the order of assigning ids to tokens without an id."""
    extra = settings.get("extra_special_tokens") or []
    custom = {key: value for key, value in settings.items() if key.endswith("_token") and key not in NAMED}
    plain = {key: value for key, value in custom.items() if isinstance(value, str)}
    if isinstance(extra, dict):
        plain |= extra
        settings["extra_special_tokens"] = []
    else:
        settings["extra_special_tokens"] = [_token(entry) for entry in extra]
    named: dict[str, str | AddedToken] = {}
    for key in NAMED:
        default = recipe.tokens.get(key) if recipe else None
        value = settings.get(key, default)
        if value is None:
            if default is not None:
                raise NotMirrored(f"{key} is null")
            continue
        value = _token(value)
        value = added.get(str(value), value) if key in settings else value
        if isinstance(value, str) and recipe and key in recipe.flags:
            value = AddedToken(value, **recipe.flags[key])
        named[key] = value
    marked = {key: value for key, value in custom.items() if isinstance(value, dict | AddedToken)}
    return named | {key: _token(value) for key, value in {**marked, **plain}.items()}


def _token(value: Json) -> str | AddedToken:
    if isinstance(value, dict) and value.get("__type") == "AddedToken":
        return AddedToken(**{key: entry for key, entry in value.items() if key != "__type"})
    if not isinstance(value, str | AddedToken):
        raise TypeError(f"a special token must be text, not {value!r}")
    return value


def _backend(
    recipe: Recipe | None,
    settings: Mapping[str, Json],
    document: dict[str, Json],
    named: Mapping[str, str | AddedToken],
) -> Tokenizer:
    """Builds the Rust tokenizer: tokenizer.json unchanged, or its vocabulary with the stages of the recipe."""
    document |= {"truncation": None, "padding": None}
    if recipe is None:
        whole = orjson.dumps(document)
        document.clear()
        return Tokenizer.from_buffer(whole)
    model = document.pop("model")
    vocab = model["vocab"]
    if model.get("type", recipe.model) != recipe.model or isinstance(vocab, list) != (recipe.model == "Unigram"):
        raise NotMirrored(f"the vocabulary is not one of {recipe.model}")
    tokens = {key: str(token) for key, token in named.items()}
    built = {"type": recipe.model, "vocab": vocab, **recipe.options(settings, vocab, tokens)}
    if recipe.model == "BPE":
        built["merges"] = model.get("merges", [])
    bare = {"version": document.get("version", "1.0"), "added_tokens": [], "model": built}
    whole = orjson.dumps(bare | {"post_processor": document.get("post_processor")})
    del model, vocab, built, bare
    backend = Tokenizer.from_buffer(whole)
    recipe.stages(backend, settings, document)
    return backend


def _add_tokens(
    backend: Tokenizer,
    added: Mapping[int, AddedToken],
    named: Mapping[str, str | AddedToken],
    extra: Iterable[str | AddedToken],
) -> None:
    """Adds tokens to the vocabulary: first the added tokens by id, then missing named tokens, then missing extra
    tokens."""
    listed = [added[number] for number in sorted(added)]
    known = {token.content for token in (*backend.get_added_tokens_decoder().values(), *listed)}
    missing: dict[str, str | AddedToken] = {}
    for token in (*named.values(), *extra):
        if str(token) not in known:
            missing.setdefault(str(token), token)
    tokens = [
        AddedToken(token, special=True) if isinstance(token, str) else token for token in (*listed, *missing.values())
    ]
    texts = set(map(str, named.values()))
    for token in tokens:
        token.special = token.special or token.content in texts
    if tokens:
        backend.add_tokens(tokens)


def _load_with_transformers(folder: Path, reason: str, *, lower_case: bool, trust_remote_code: bool) -> LoadedTokenizer:
    try:
        # Not ``import transformers``: in a thread that waits while another one imports it, the statement returns the
        # module as it was before it replaced itself, without AutoTokenizer.
        transformers = import_module("transformers")
    except ImportError as exc:
        saved = "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        other = f", or save a tokenizer.json there, as {saved} does" if reason == NO_FILE else ""
        raise LoadError(
            f"transformers has to load the tokenizer in {folder} ({reason})",
            f": {install_command('transformers')} (the slim image has none){other}",
        ) from exc
    transformers.utils.logging.set_verbosity_error()
    options: dict[str, Any] = {} if lower_case else {"do_lower_case": False}
    options |= {"trust_remote_code": trust_remote_code, "local_files_only": not trust_remote_code}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **options)
    except Exception as exc:  # custom code and its libraries can raise any exception
        if "trust_remote_code" in str(exc) and not trust_remote_code:
            raise LoadError(f"the tokenizer in {folder} has custom code: allow it with --trust_remote_code") from exc
        detail = f"{type(exc).__name__}: {' '.join(str(exc).split())}"[:300]
        raise LoadError(f"the tokenizer in {folder} can't be loaded: {detail}") from exc
    tokens = {name: getattr(tokenizer, name, None) for name in NAMED}
    return LoadedTokenizer(
        _rust_part(tokenizer, lower_case),
        1 + max(tokenizer.get_vocab().values(), default=-1),
        {name: str(token) for name, token in tokens.items() if token is not None},
        tokenizer.padding_side,
        tokenizer.truncation_side,
        tokenizer.model_max_length,
        bool(tokenizer.clean_up_tokenization_spaces),
        f"transformers {transformers.__version__}, class {type(tokenizer).__name__} ({reason})",
        tokenizer,
        None if reason == NO_FILE else folder / "tokenizer.json",
    )


def _rust_part(tokenizer: Any, lower_case: bool) -> Tokenizer | None:
    """Copies the inner Rust tokenizer; None if the class overrides encoding."""
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    kind = type(tokenizer)
    if not isinstance(tokenizer, TokenizersBackend) or (kind._encode_plus, kind.__call__) != (
        TokenizersBackend._encode_plus,
        PreTrainedTokenizerBase.__call__,
    ):
        return None
    document = orjson.loads(tokenizer.backend_tokenizer.to_str())
    if not lower_case:
        document["normalizer"] = without_lower_case(document.get("normalizer"))
    backend = Tokenizer.from_buffer(orjson.dumps(document))
    backend.encode_special_tokens = tokenizer.backend_tokenizer.encode_special_tokens
    return backend


def choose_max_length(max_model_len: int | None, tokenizer_limit: int | None, config: Mapping[str, Json]) -> int:
    """Maximum length for truncation: ``max_model_len``, else the tokenizer's or the model's limit, else 512.

    The smaller of the two limits applies. Raises LoadError if ``max_model_len`` exceeds the model's limit.
    """
    limit = model_limit(config)
    if max_model_len is not None:
        if limit is not None and max_model_len > limit:
            raise LoadError(f"--max_model_len={max_model_len} is more than the {limit} tokens that config.json allows")
        return max_model_len
    lengths = [length for length in (_length(tokenizer_limit), limit) if length]
    return min(*lengths, MAX_LENGTH) if lengths else DEFAULT_MAX_LENGTH


def model_limit(config: Mapping[str, Json]) -> int | None:
    """Maximum sequence length in config.json, including special tokens; None without a limit."""
    text = config.get("text_config")
    lengths = [_length(config.get(key)) for key in LENGTH_KEYS]
    limit = min((length for length in lengths if length), default=None)
    if limit is None:
        return model_limit(text) if isinstance(text, Mapping) else None
    if config.get("model_type") in OFFSET_POSITIONS:
        # MPNet's padding_idx is always 1. In the other models it is pad_token_id, 1 by default.
        padding = 1 if config["model_type"] == "mpnet" else config.get("pad_token_id", 1)
        limit -= (padding if isinstance(padding, int) else 1) + 1
    return _stretched(limit, config.get("rope_scaling") or config.get("rope_parameters"))


def _length(value: Json) -> int | None:
    """Converts a limit to an int. Returns None for values that mean no limit: negative, zero or at least NO_LIMIT."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < NO_LIMIT:
        return None
    return int(value)


def _stretched(length: int, scaling: Json) -> int:
    """Maximum length after scaling of rotary positions by rope_scaling (linear, dynamic, yarn)."""
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, Mapping) else None
    if kind == "yarn":
        length = _length(scaling.get("original_max_position_embeddings")) or length
    factor = scaling.get("factor") if kind in ("linear", "dynamic", "yarn") else None
    return int(min(length * factor, NO_LIMIT)) if isinstance(factor, int | float) and factor > 1 else length
