"""Recipes for the tokenizer classes of transformers, which build a pipeline around the vocabulary.

Since version 5, most classes read only the vocabulary from tokenizer.json, and build the rest of the pipeline from
tokenizer_config.json. A class's recipe defines the model type and its options, the default special tokens, and the
stages of the pipeline. Tests compare the recipes with the installed version.

Source: transformers 5.24, models/*/tokenization_*.py and models/auto/tokenization_auto.py.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors

from hf_transformer.tokenizer.words import QWEN2_WORDS
from hf_transformer.types.request import Json

Settings = Mapping[str, Json]
"""Settings in tokenizer_config.json, merged with older settings files."""

SpecialTokens = Mapping[str, str]
"""Texts of special tokens by name (``cls_token``, ...)."""


def named(text: str) -> dict[str, str]:
    """Parses special tokens: ``cls=[CLS] sep=[SEP]`` becomes {"cls_token": "[CLS]", "sep_token": "[SEP]"}."""
    return {f"{name}_token": token for name, token in (part.split("=", 1) for part in text.split())}


BERT_TOKENS = named("unk=[UNK] sep=[SEP] pad=[PAD] cls=[CLS] mask=[MASK]")
ROBERTA_TOKENS = named("bos=<s> eos=</s> unk=<unk> sep=</s> pad=<pad> cls=<s> mask=<mask>")
GPT2_TOKENS = named("unk=<|endoftext|> bos=<|endoftext|> eos=<|endoftext|>")
DEBERTA_TOKENS = BERT_TOKENS | named("bos=[CLS] eos=[SEP]")
BYTE_LEVEL_BPE: Mapping[str, Json] = {"continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False}

Finish = Callable[[Tokenizer, Settings, SpecialTokens], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Recipe for building the tokenizer of one class.

    Attributes:
        model: the model type.
        tokens: the default special tokens.
        stages: sets normalizer, pre-tokenizer and decoder on the tokenizer.
        finish: sets the post-processor; None keeps the post-processor of tokenizer.json.
        options: computes the model's options from settings, vocabulary and special tokens.
        flags: AddedToken flags of special tokens that the settings define as plain strings.
        extra: default extra special tokens.
    """

    model: str
    tokens: Mapping[str, str]
    stages: Callable[[Tokenizer, Settings, Json], None]
    finish: Finish | None = None
    options: Callable[[Settings, Json, SpecialTokens], dict[str, Json]] = lambda *_: dict(BYTE_LEVEL_BPE)
    flags: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    extra: tuple[str, ...] = ()


def charsmap(document: Json) -> bytes | None:
    """SentencePiece's character replacement table (precompiled_charsmap) in a tokenizer.json; None if it is missing."""
    normalizer = document.get("normalizer") or {}
    for step in normalizer.get("normalizers", [normalizer]):
        if step.get("type") == "Precompiled":
            return base64.b64decode(step["precompiled_charsmap"])
    return None


def _ids(tokenizer: Tokenizer, *tokens: str) -> list[tuple[str, int]]:
    pairs = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(tokens)]
    return [(token, number) for token, number in pairs if number is not None]


def _template(single: str, pair: str) -> Finish:
    """Creates a template post-processor. Placeholders such as ``{cls_token}`` stand for the special tokens."""
    names = re.findall("{(.*?)}", single)

    def finish(tokenizer: Tokenizer, settings: Settings, tokens: SpecialTokens) -> None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single.format_map(tokens),
            pair=pair.format_map(tokens),
            special_tokens=_ids(tokenizer, *(tokens[name] for name in names)),
        )

    return finish


_bert_finish = _template("{cls_token}:0 $A:0 {sep_token}:0", "{cls_token}:0 $A:0 {sep_token}:0 $B:1 {sep_token}:1")
_deberta_finish = _template("{cls_token} $A {sep_token}", "{cls_token} $A {sep_token} {sep_token} $B {sep_token}")
_t5_finish = _template("$A {eos_token}", "$A {eos_token} $B {eos_token}")
_xlmr_finish = _template("{bos_token} $A {eos_token}", "{bos_token} $A {eos_token} {eos_token} $B {eos_token}")
_xlnet_finish = _template("$A:0 {sep_token}:0 {cls_token}:2", "$A:0 {sep_token}:0 $B:1 {sep_token}:1 {cls_token}:2")


def _wordpiece_options(settings: Settings, vocab: Json, tokens: SpecialTokens) -> dict[str, Json]:
    return {"unk_token": tokens["unk_token"], "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}


def _bert_stages(tokenizer: Tokenizer, settings: Settings, document: Json) -> None:
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")


def _roberta_finish(tokenizer: Tokenizer, settings: Settings, tokens: SpecialTokens) -> None:
    trim, prefix = settings.get("trim_offsets", True), settings.get("add_prefix_space", False)
    (cls,), (sep,) = _ids(tokenizer, tokens["cls_token"]), _ids(tokenizer, tokens["sep_token"])
    tokenizer.post_processor = processors.RobertaProcessing(sep, cls, trim, prefix)


def _byte_level_stages(tokenizer: Tokenizer, settings: Settings, document: Json) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space", False))
    tokenizer.decoder = decoders.ByteLevel()


def _neox_stages(tokenizer: Tokenizer, settings: Settings, document: Json) -> None:
    _byte_level_stages(tokenizer, settings, document)
    tokenizer.normalizer = normalizers.NFC()


def _qwen2_stages(tokenizer: Tokenizer, settings: Settings, document: Json) -> None:
    prefix = bool(settings.get("add_prefix_space"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_WORDS), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()


def _metaspace_stages(tokenizer: Tokenizer, settings: Settings, document: Json) -> None:
    if (table := charsmap(document)) is not None:
        tokenizer.normalizer = normalizers.Precompiled(table)
    _metaspace(tokenizer, "always" if settings.get("add_prefix_space", True) else "never")


def _metaspace(tokenizer: Tokenizer, scheme: str) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)]
    )
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)


def _albert_stages(tokenizer: Tokenizer, settings: Settings, document: Json) -> None:
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.get("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    if (table := charsmap(document)) is not None:
        steps.append(normalizers.Precompiled(table))
    tokenizer.normalizer = normalizers.Sequence(steps)
    _metaspace(tokenizer, "always" if settings.get("add_prefix_space", True) else "never")
    if document.get("post_processor") is None:
        if not {"cls_token", "sep_token"}.isdisjoint(settings):
            raise ValueError("cls_token or sep_token is set, and there is no post-processor")
        _bert_finish(tokenizer, settings, BERT_TOKENS)


def _llama_stages(tokenizer: Tokenizer, settings: Settings, document: Json) -> None:
    has_prefix = settings.get("add_prefix_space") is not False
    scheme = ("always" if settings.get("legacy") else "first") if has_prefix else "never"
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if has_prefix:
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence(steps)


def _xlnet_stages(tokenizer: Tokenizer, settings: Settings, document: Json) -> None:
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.get("do_lower_case", False):
        steps.append(normalizers.Lowercase())
    tokenizer.normalizer = normalizers.Sequence(steps)
    _metaspace(tokenizer, "always")


def _deberta_v2_stages(tokenizer: Tokenizer, settings: Settings, document: Json) -> None:
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if settings.get("do_lower_case", False) else []
    space = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    tokenizer.normalizer = normalizers.Sequence(
        [*steps, space, normalizers.NFC(), normalizers.Strip(left=False, right=True)]
    )
    scheme = "always" if settings.get("add_prefix_space", True) else "first"
    split: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)]
    if settings.get("split_by_punct", False):
        split.insert(0, pre_tokenizers.Punctuation(behavior="isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)


def _unigram(unk_id: int) -> Callable[[Settings, Json, SpecialTokens], dict[str, Json]]:
    return lambda *_: {"unk_id": unk_id, "byte_fallback": False}


def _camembert_options(settings: Settings, vocab: Json, tokens: SpecialTokens) -> dict[str, Json]:
    names = [entry[0] for entry in vocab]
    unk = tokens["unk_token"]
    return {"unk_id": names.index(unk) if unk in names else 0, "byte_fallback": False}


def _deberta_v2_options(settings: Settings, vocab: Json, tokens: SpecialTokens) -> dict[str, Json]:
    unk = [tokens["unk_token"], 0.0]
    return {"unk_id": vocab.index(unk) if unk in vocab else settings.get("unk_id", 1), "byte_fallback": False}


RECIPES: Mapping[str, Recipe] = {
    "BertTokenizer": Recipe("WordPiece", BERT_TOKENS, _bert_stages, _bert_finish, _wordpiece_options),
    "MPNetTokenizer": Recipe(
        "WordPiece",
        ROBERTA_TOKENS | named("unk=[UNK]"),
        _bert_stages,
        lambda tokenizer, _, tokens: _roberta_finish(tokenizer, {}, tokens),
        _wordpiece_options,
        flags={name: {"lstrip": name == "mask_token"} for name in ROBERTA_TOKENS},
    ),
    "RobertaTokenizer": Recipe("BPE", ROBERTA_TOKENS, _byte_level_stages, _roberta_finish),
    "GPT2Tokenizer": Recipe("BPE", GPT2_TOKENS, _byte_level_stages),
    "GPTNeoXTokenizer": Recipe(
        "BPE", GPT2_TOKENS | named("pad=<|padding|>"), _neox_stages, _template("$A:0", "$A:0 $B:1")
    ),
    "Qwen2Tokenizer": Recipe("BPE", named("unk=<|endoftext|> eos=<|endoftext|> pad=<|endoftext|>"), _qwen2_stages),
    "DebertaTokenizer": Recipe("BPE", DEBERTA_TOKENS, _byte_level_stages, _deberta_finish),
    "XLMRobertaTokenizer": Recipe("Unigram", ROBERTA_TOKENS, _metaspace_stages, _xlmr_finish, _unigram(3)),
    "CamembertTokenizer": Recipe(
        "Unigram",
        ROBERTA_TOKENS,
        _metaspace_stages,
        _xlmr_finish,
        _camembert_options,
        flags={"mask_token": {"lstrip": True, "special": True}},
        extra=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
    ),
    "AlbertTokenizer": Recipe(
        "Unigram", DEBERTA_TOKENS | named("unk=<unk> pad=<pad>"), _albert_stages, options=_unigram(1)
    ),
    "XLNetTokenizer": Recipe(
        "Unigram",
        DEBERTA_TOKENS | named("bos=<s> eos=</s> unk=<unk> sep=<sep> pad=<pad> cls=<cls> mask=<mask>"),
        _xlnet_stages,
        _xlnet_finish,
        _unigram(0),
        flags={"mask_token": {"lstrip": True}},
        extra=("<eop>", "<eod>"),
    ),
    "T5Tokenizer": Recipe(
        "Unigram",
        named("eos=</s> unk=<unk> pad=<pad>"),
        lambda tokenizer, _, document: _metaspace_stages(tokenizer, {}, document),
        _t5_finish,
        _unigram(2),
    ),
    "LlamaTokenizer": Recipe(
        "BPE",
        named("unk=<unk> bos=<s> eos=</s>"),
        _llama_stages,
        options=lambda *_: {"fuse_unk": True, "byte_fallback": True},
    ),
    "DebertaV2Tokenizer": Recipe("Unigram", DEBERTA_TOKENS, _deberta_v2_stages, _bert_finish, _deberta_v2_options),
}
"""Recipes by class name. The generic class has no recipe."""

GENERIC = "TokenizersBackend"
"""Generic class, which loads tokenizer.json unchanged."""

GENERIC_NAMES = frozenset({GENERIC, "PreTrainedTokenizer", "PythonBackend", "BloomTokenizer"})
"""Names of the generic class in tokenizer_config.json, without a trailing ``Fast``."""

MODEL_TYPES: Mapping[str, str] = {
    GENERIC: (
        "EvollaModel arctic aria beam bigbird_pegasus camembertv2-base canary chatlm cohere_asr ernie4_5"
        " ernie4_5_moe flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr got_ocr2"
        " gpt_bigcode gradium_phonon_tts granite granitemoe granitemoehybrid granitemoeshared h2ovl_chat"
        " hyperclovax hyperclovax_vlm internlm2 internlm3 iquestcoder jamba kimi_k25 kimi_linear kosmos-2 llava"
        " llava_next mimo_v2_flash minicpm3 minicpm_ocr minicpmv minicpmv4_6 minicpmv4_7 minimax_m2 ministral"
        " ministral3 mistral mistral3 mistral_large4 mixtral modernbert modernbert-decoder molmo molmo2"
        " nemo_speechlm nemotron nvfp4 nystromformer olmo2 olmo3 olmo_hybrid omniasr opencua openvla paddleocr_vl"
        " pegasus_x persimmon phi3 phi3_v phimoe pix2struct pixtral pocket_tts smolvlm stablelm step3_vl umt5"
        " vipllava voxtral voxtral_realtime xlm-roberta-xl"
    ),
    "BertTokenizer": (
        "align bark bert blip bros chinese_clip convbert distilbert electra ernie flava git grounding-dino layoutlm"
        " lxmert megatron-bert mm-grounding-dino mobilebert nomic_bert squeezebert tvp vilt visual_bert"
    ),
    "MPNetTokenizer": "mpnet",
    "RobertaTokenizer": (
        "bart bridgetower clap data2vec-text florence2 ibert led lilt longformer mra mvp roberta roberta-prelayernorm"
    ),
    "GPT2Tokenizer": (
        "blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip instructblipvideo jais2 opt phi"
        " starcoder2"
    ),
    "XLMRobertaTokenizer": "gte jina_embeddings_v3 metaclip_2 trocr xlm-roberta xmod",
    "CamembertTokenizer": "camembert",
    "AlbertTokenizer": "albert yoso",
    "XLNetTokenizer": "xlnet",
    "T5Tokenizer": "mt5 musicgen musicgen_melody switch_transformers t5",
    "DebertaTokenizer": "deberta",
    "DebertaV2Tokenizer": "deberta-v2",
    "Qwen2Tokenizer": (
        "audioflamingo3 colqwen2 internvl ovis2 qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3"
        " qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe"
    ),
    "LlamaTokenizer": "idefics idefics2",
    "GPTNeoXTokenizer": "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm",
}
"""Values of model_type in config.json that transformers registers for each tokenizer class."""

ALIASES: Mapping[str, str] = {
    **{f"{name}Tokenizer": "BertTokenizer" for name in "DistilBert Electra LayoutLM MobileBert SqueezeBert".split()},
    **{f"{name}Tokenizer": "RobertaTokenizer" for name in "Bart LED Longformer".split()},
}
"""Aliases of classes with identical behaviour."""

WRONG_CLASS_TYPES = frozenset(
    {"hyperclovax_vision_v2", "qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp", "siglip2"}
)
"""Model types whose registered class overrides the class in tokenizer_config.json."""

UNREGISTERED = frozenset({"llama"})
"""Values of model_type without a registered class: tokenizer_config.json names one, else the generic one applies."""

_REGISTERED = {model_type: name for name, types in MODEL_TYPES.items() for model_type in types.split()}


def tokenizer_class(
    config: Mapping[str, Json], settings: Mapping[str, Json], *, byte_level: bool = False, any_type: bool = False
) -> str | None:
    """Determines the tokenizer class from config.json and tokenizer_config.json: a key of MODEL_TYPES.

    Args:
        byte_level: whether tokenizer.json has a ByteLevel stage. Many such folders name LlamaTokenizer, which has none,
            so that the file is loaded unchanged.
        any_type: whether the class of tokenizer_config.json applies to a model type that is missing here, as
            transformers does for types that it does not register. It may register one that is missing here.

    Returns None for an unknown class or custom code, which only transformers can load.
    """
    model_type = config.get("model_type") or ""
    name = settings.get("tokenizer_class") or config.get("tokenizer_class")
    if "auto_map" in settings or config.get("model_name") is not None or not isinstance(name, str | None):
        return None
    is_unregistered = not model_type or model_type in UNREGISTERED
    if name is None:
        # transformers may register a model type that is missing here.
        return GENERIC if is_unregistered else _REGISTERED.get(model_type)
    name = name.removesuffix("Fast")
    name = GENERIC if name in GENERIC_NAMES else ALIASES.get(name, name)
    if model_type in WRONG_CLASS_TYPES:
        return _REGISTERED.get(model_type)
    if name == GENERIC:
        return GENERIC
    if name not in MODEL_TYPES or not (is_unregistered or model_type in _REGISTERED or any_type):
        return None
    if name == "LlamaTokenizer" and byte_level:
        return GENERIC
    # The folder's class overrides the registered class, unless the registered class is generic.
    return GENERIC if _REGISTERED.get(model_type) == GENERIC else name
