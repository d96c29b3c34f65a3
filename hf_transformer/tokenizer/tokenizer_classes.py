"""Which of transformers' tokenizer classes AutoTokenizer would take for a folder.

Since version 5 the class matters: most classes read only the vocabulary from tokenizer.json and build the rest of the
pipeline themselves from tokenizer_config.json. The rules are those of AutoTokenizer.from_pretrained in transformers
5.23 (models/auto/tokenization_auto.py); a test compares the tables with the installed version.
"""

from __future__ import annotations

from collections.abc import Mapping

from hf_transformer.types import Json

GENERIC = "TokenizersBackend"
"""The class that takes tokenizer.json as it is."""

GENERIC_NAMES = frozenset({GENERIC, "PreTrainedTokenizer", "PythonBackend", "BloomTokenizer"})
"""Names that mean the generic class when tokenizer_config.json has them, after a trailing ``Fast`` is cut off."""

MODEL_TYPES: Mapping[str, str] = {
    GENERIC: (
        "aria beam bigbird_pegasus canary cohere_asr ernie4_5 flex_olmo fuyu glm glm4 glm4_moe got_ocr2 gpt_bigcode"
        " granite granitemoe granitemoehybrid granitemoeshared jamba kosmos-2 llava llava_next minimax_m2 modernbert"
        " modernbert-decoder nemotron nystromformer olmo2 olmo3 olmo_hybrid pegasus_x persimmon phi3 phimoe"
        " pix2struct smolvlm stablelm umt5 vipllava xlm-roberta-xl"
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
        "blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj instructblip instructblipvideo jais2 opt phi starcoder2"
    ),
    "XLMRobertaTokenizer": "gte jina_embeddings_v3 metaclip_2 trocr xlm-roberta xmod",
    "CamembertTokenizer": "camembert",
    "AlbertTokenizer": "albert yoso",
    "T5Tokenizer": "mt5 musicgen musicgen_melody switch_transformers t5",
    "DebertaTokenizer": "deberta",
    "DebertaV2Tokenizer": "deberta-v2",
    "Qwen2Tokenizer": (
        "audioflamingo3 colqwen2 internvl ovis2 qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3"
        " qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe"
    ),
    "GPTNeoXTokenizer": "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm",
}
"""Tokenizer class -> the values of config.json's model_type that are registered for it."""

ALIASES: Mapping[str, str] = {
    "DistilBertTokenizer": "BertTokenizer",
    "ElectraTokenizer": "BertTokenizer",
    "LayoutLMTokenizer": "BertTokenizer",
    "MobileBertTokenizer": "BertTokenizer",
    "SqueezeBertTokenizer": "BertTokenizer",
    "BartTokenizer": "RobertaTokenizer",
    "LEDTokenizer": "RobertaTokenizer",
    "LongformerTokenizer": "RobertaTokenizer",
}
"""Classes that behave exactly as another one."""

WRONG_CLASS_TYPES = frozenset(
    {"hyperclovax_vision_v2", "qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp", "siglip2"}
)
"""Model types whose registered class wins over the class that tokenizer_config.json names."""

_REGISTERED = {model_type: name for name, types in MODEL_TYPES.items() for model_type in types.split()}


def tokenizer_class(config: Mapping[str, Json], settings: Mapping[str, Json]) -> str | None:
    """The class for a config.json and a tokenizer_config.json: a key of MODEL_TYPES.

    None if it is a class that is not known here, or custom code: then transformers itself has to load it.
    """
    model_type = config.get("model_type") or ""
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    if "auto_map" in settings or config.get("model_name") is not None or not isinstance(named, str | None):
        return None
    if named is None:
        # A model type without an entry may be one that transformers knows.
        return _REGISTERED.get(model_type) if model_type else GENERIC
    named = _canonical(named)
    if model_type in WRONG_CLASS_TYPES:
        return _REGISTERED.get(model_type)
    if named == GENERIC:
        return GENERIC
    if named not in MODEL_TYPES or (model_type and model_type not in _REGISTERED):
        return None
    # The class that the folder names wins over the registered one, except over the generic class.
    return GENERIC if _REGISTERED.get(model_type) == GENERIC else named


def _canonical(name: str) -> str:
    name = name.removesuffix("Fast")
    return GENERIC if name in GENERIC_NAMES else ALIASES.get(name, name)
