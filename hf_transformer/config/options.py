"""All options: each field of Config declares a flag, its variables, default, limits and help.

Every flag has a variable HF_TRANSFORMER_<FLAG IN CAPITALS>. ``variables`` adds KServe's names, but no bare names such
as HTTP_PORT: Kubernetes sets variables of that form for its services.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

from hf_transformer.config.option import (
    ANSWERS,
    BOOLEAN,
    GENERATION,
    LOG_LEVEL,
    MODEL,
    PREDICTOR,
    TOKEN,
    Converter,
    Option,
    Setting,
    Variable,
    integer,
    name_list,
    number,
    one_of,
    option,
    options_of,
    plain_text,
)
from hf_transformer.config.parser import collect
from hf_transformer.config.rules import DEFAULT_NAME, RULES, Draft
from hf_transformer.cpus import available_cpus
from hf_transformer.types.task_names import TASK_NAMES

SEVERAL, SERVER, LIMITS, LOGGING = "Several models", "Server", "Limits", "Logging"

PATH = plain_text("FILE", "the path of a file")
SECONDS = number(0, 10**6, metavar="SECONDS")
AGE = number(0, 10**6, zero=True, metavar="SECONDS")
PREDICTOR_NAME = plain_text("NAME", "a name without spaces and / ? # %", r"[^\s/?#%]+")
PATH_WORDS = "config generate generate_stream infer info load ready stats unload versions".split()
"""Ends of the model routes. A name such as bert/infer would have the path of another route."""
_PART = r"(?!\.{1,2}(?:/|$))[^\s/?#%]+"
_NAME = rf"(?!.*:(?:predict|tokenize|detokenize|explain)$){_PART}(?:/(?!(?:{'|'.join(PATH_WORDS)})(?:/|$)){_PART})*"
MODEL_NAME = plain_text("NAME", "a name without spaces, ? # % and ends of routes such as /infer, :predict", _NAME)
MODEL_NAMES = name_list(
    "NAME,...", "different names without ? # % and ends of routes such as /infer, :predict, separated by commas", _NAME
)
NAMES = name_list("NAME,...", "different names separated by commas, such as input_ids,attention_mask")

HOST_NAME = r"\*|(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|\[?[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*\]?"
"""A name, an IPv4 or an IPv6 address. ``name_list`` may strip a bracket of an IPv6 address."""
IMAGE_HOST = r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?(:[0-9]{1,5})?"


def local_folder(text: str) -> str:
    """Returns the path of a local folder or of a file:// URI. Raises ValueError for other URIs."""
    uri = re.match(r"(\w+)://", text)
    if uri is None:
        return text
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise ValueError(text)
    return unquote(parts.path)


LOCAL_FOLDER = Converter(
    "FOLDER",
    "a local folder, also as file:///FOLDER (KServe's init container storage-initializer downloads other storage to "
    "/mnt/models; a model on the hub is --model_id)",
    local_folder,
)


def scheme_as_switch(text: str) -> str | None:
    """Converts a scheme in OpenShift AI's PREDICTOR_PROTOCOL to --predictor_use_ssl. Returns None for other texts."""
    return {"https": "true", "http": "false"}.get(text.strip().lower())


def default_threads() -> int:
    """Returns the number of tokenizer threads for the CPUs available to this process."""
    return min(32, available_cpus() + 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The validated settings of one service. Every worker process gets the same object."""

    # fmt: off
    model_name: str = option(
        MODEL, "Name of the model in URL paths and on the predictor. A name with slashes, such as "
        "BAAI/bge-small-en-v1.5, needs --predictor_model.", MODEL_NAME, DEFAULT_NAME,
        variables=["INFERENCE_SERVICE_NAME"])
    aliases: tuple[str, ...] = option(
        MODEL, "Further names of the model in URL paths and in OpenAI's field model.", MODEL_NAMES, (), many=True)
    adapters: tuple[str, ...] = option(
        MODEL, "LoRA adapters of a text model (Triton's vLLM backend): names that requests may choose like a model; "
        "sent to the backend as lora_name.", MODEL_NAMES, (), many=True)
    model_dir: str = option(
        MODEL, "Local folder with config.json and the tokenizer's files, also as file:///FOLDER. Ignored if "
        "--model_id is given.", LOCAL_FOLDER, "/mnt/models")
    model_id: str | None = option(
        MODEL, "Model on the Hugging Face hub, such as bert-base-uncased.", plain_text("ID"))
    model_revision: str | None = option(
        MODEL, "Revision of --model_id: a branch, tag or commit.", plain_text("REVISION"),
        variables=["MODEL_REVISION"], default_text="the main branch")
    tokenizer_revision: str | None = option(
        MODEL, "Revision of the tokenizer.", plain_text("REVISION"), default_text="the revision of the model")
    hf_token: str | None = option(
        MODEL, "Token for private models on the hub. Prefer the variable: flags are visible in process lists.",
        TOKEN, variables=["HF_TOKEN"])
    max_model_file_bytes: int = option(
        MODEL, "Maximum bytes of each of the model's files that the service reads, such as tokenizer.json. Other JSON "
        "files have at most 16 MiB.", integer(1), 2**26)
    trust_remote_code: bool = option(
        MODEL, "Run the Python code that comes with a tokenizer.", BOOLEAN, False,
        variables=["TRUST_REMOTE_CODE"])
    task: str | None = option(
        MODEL, f"Task of the model: {', '.join([*TASK_NAMES][:-1])} or {[*TASK_NAMES][-1]}. Hyphens and the names of "
        "Hugging Face pipelines are accepted too.", plain_text("NAME"),
        variables=["TASK"], default_text="from the architecture in config.json")
    rerank_template: str = option(
        MODEL, "Template around query and document of a reranker: qwen3, bge, none, or Jinja with the roles query and "
        "document (FILE or TEXT); auto takes the model's own, else that of its architecture.",
        plain_text("FILE or TEXT"), "auto")
    rerank_tokens: tuple[str, ...] | None = option(
        MODEL, "Tokens of a causal reranker whose logits make the score: of one token its logit (Yes), of two the "
        "second's minus the first's (no,yes).", NAMES,
        default_text="the model's, or those of its template")
    max_model_len: int | None = option(
        MODEL, "Maximum tokens of a text, special tokens included.", integer(1), aliases=("max_length",),
        default_text="the smaller of the tokenizer's and the model's limit")
    disable_lower_case: bool = option(
        MODEL, "Keep the case of texts, even if the tokenizer would lower-case them.", BOOLEAN, False)
    disable_special_tokens: bool = option(MODEL, "Do not add special tokens such as [CLS].", BOOLEAN, False)
    user_special_tokens: Literal["text", "tokens"] | None = option(
        MODEL, "Special tokens in texts of users, such as [SEP] in a document or <|im_end|> in a message: text "
        "tokenizes them as letters, tokens makes tokens of them, as transformers does. fill_mask always takes tokens.",
        one_of("text", "tokens"),
        default_text="text for chats, rerankers and pairs of texts; tokens for single texts and raw prompts")
    enable_word_cache: bool = option(
        MODEL, "Cache the token ids of words, in at most 16 MiB; this saves a third of a short request's CPU "
        "time.", BOOLEAN, True)
    return_token_type_ids: bool = option(
        MODEL, "Send token_type_ids also if --tensor_input_names does not name it. Without that flag each model with "
        "this input gets it.", BOOLEAN, False)

    return_probabilities: bool = option(
        ANSWERS, "Answer with the probabilities of all labels or tokens.", BOOLEAN, False)
    return_raw_logits: bool = option(
        ANSWERS, "Answer with the logits of all labels or tokens. Excludes --return_probabilities.", BOOLEAN, False)
    output_format: Literal["kserve", "pipeline"] | None = option(
        ANSWERS, "Format of answers: that of KServe's runtime, or of Hugging Face pipelines.",
        one_of("kserve", "pipeline"),
        default_text="kserve; pipeline for token_classification with --aggregation_strategy")
    return_offsets_mapping: bool = option(
        ANSWERS, "Include the offsets of tokens in answers (token_classification).", BOOLEAN, False)
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] = option(
        ANSWERS, "Grouping of tokens to entities in the pipeline format of token_classification.",
        one_of("none", "simple", "first", "average", "max"), "none", variables=["AGGREGATION_STRATEGY"])
    labels: str | None = option(
        ANSWERS, "Labels of requests without labels, with commas between (zero_shot_token_classification).",
        plain_text("LABELS"), default_text="each request has its own")
    labels_model: str | None = option(
        ANSWERS, "Name of the predictor's model that makes the vectors of labels, for bi-encoders "
        "(zero_shot_token_classification).", PREDICTOR_NAME,
        default_text="the model's name on the predictor with _labels behind it")
    moderation_categories: str | None = option(
        ANSWERS, "File (JSON or YAML) with OpenAI's categories of a classifier's labels, for moderations.",
        plain_text("FILE"), default_text="each label is a category")
    moderation_threshold: float = option(
        ANSWERS, "Score from which a text is in a category of moderations; --moderation_categories may have others by "
        "label.", number(0, 1, zero=True), 0.5)
    mask_key_file: str | None = option(
        ANSWERS, "File with the key of {hash} in the parameter mask; white space around the key is removed.", PATH,
        default_text="{hash} is refused")
    entity_names: str | None = option(
        ANSWERS, "File (JSON or YAML) with Presidio's names of a model's entities, for /analyze; an entity without a "
        "name is left out.", plain_text("FILE"), default_text="PER: PERSON, LOC: LOCATION, ORG: ORGANIZATION, ...")
    enable_pii_patterns: bool = option(
        ANSWERS, "Find e-mail addresses, IBANs, cards, IP addresses and phone numbers in /analyze, too.",
        BOOLEAN, False)
    on_overflow: Literal["truncate", "error", "window"] = option(
        ANSWERS, "Treatment of a text longer than the model takes: truncate it, refuse it with 413, or read it in "
        "windows (all tasks except fill_mask and feature_extraction).",
        one_of("truncate", "error", "window"), "truncate")
    stride: int | None = option(
        ANSWERS, "Tokens that neighbouring windows share.", integer(0),
        default_text="a quarter of the model's length; question_answering: half of it, at most 128")

    generation_interface: Literal["auto", "tokens", "text", "logits"] = option(
        GENERATION, "Interface of a generative model: tokens takes token ids (TensorRT-LLM), text takes text (vLLM, "
        "Python backends), logits takes token ids and returns the next token's logits; auto decides by the tensors.",
        one_of("auto", "tokens", "text", "logits"), "auto")
    chat_template: str | None = option(
        GENERATION, "Chat template (Jinja), or the path of a file with one.", plain_text("FILE or TEXT"),
        default_text="the tokenizer's")
    response_template: str = option(
        GENERATION, "How a chat model writes reasoning and calls of tools: a file with a response template of "
        "transformers (JSON), a name of the table in chat_models.md, none to leave answers as they are, or auto: the "
        "tokenizer's own, else what the chat template shows.", plain_text("auto, FILE, NAME or none"), "auto")
    tool_call_parser: str | None = option(
        GENERATION, "vLLM's name of the form of calls, such as hermes or qwen3_coder; see --response_template.",
        plain_text("NAME"))
    reasoning_parser: str | None = option(
        GENERATION, "vLLM's name of the form of reasoning, such as deepseek_r1 or qwen3; see --response_template.",
        plain_text("NAME"))
    enable_auto_tool_choice: bool = option(
        GENERATION, "Read the calls that a model makes by its own choice; else they are content.", BOOLEAN, True)
    max_images: int = option(
        GENERATION, "Maximum images of a chat, for models that take images.", integer(1, 1000), 16)
    max_image_bytes: int = option(
        GENERATION, "Maximum bytes of an image's file.", integer(1), 8 * 2**20)
    max_image_pixels: int = option(
        GENERATION, "Maximum pixels of an image, width times height, as its file says.", integer(1), 2**25)
    allowed_image_hosts: tuple[str, ...] = option(
        GENERATION, "Hosts from which the service fetches the images of chats, over https: exact names with an "
        "optional port. Names of private addresses are refused; an address in this list may be private.",
        name_list("HOST,...", "host names with an optional port, such as images.example.com", IMAGE_HOST),
        (), many=True, default_text="none")
    image_timeout_seconds: float = option(
        GENERATION, "Time limit for fetching all images of a chat.", SECONDS, 10.0)
    max_new_tokens: int | None = option(
        GENERATION, "Maximum new tokens per text that a request may ask for, in every API; more are refused with "
        "413.", integer(1), default_text="limited by the model's length alone")
    generation_max_length: int = option(
        GENERATION, "Default of max_length: maximum tokens of prompt and continuation together (encoder-decoder: of "
        "the answer). The variable MAX_LENGTH sets this flag, not --max_length. This flag and those below apply to "
        "V1, V2 and generate; OpenAI's API has OpenAI's defaults.", integer(1), 20,
        variables=["MAX_LENGTH"])
    do_sample: bool = option(
        GENERATION, "Sample instead of always choosing the likeliest token.", BOOLEAN, False,
        variables=["DO_SAMPLE"])
    temperature: float = option(
        GENERATION, "Sampling temperature.", number(0, 100, zero=True), 1.0, variables=["TEMPERATURE"])
    top_k: int = option(
        GENERATION, "Number of likeliest tokens to sample from; 0 means all.", integer(0), 50, variables=["TOP_K"])
    top_p: float = option(
        GENERATION, "Total probability of the likeliest tokens to sample from.", number(1e-6, 1), 1.0,
        variables=["TOP_P"])
    return_full_text: bool = option(
        GENERATION, "Answer with the prompt and its continuation (text_generation).", BOOLEAN, True,
        variables=["RETURN_FULL_TEXT"])
    max_schema_bytes: int = option(
        GENERATION, "Maximum bytes of a request's JSON schema, regular expression, grammar or list of choices; larger "
        "ones are refused with 413.", integer(1), 65_536)
    structured_output_form: Literal["structured_outputs", "guided_decoding", "none"] = option(
        GENERATION, "Field of sampling_parameters for structured output in Triton's vLLM backend: structured_outputs "
        "since Triton 25.11, guided_decoding before, none to refuse such requests. Backends ignore an "
        "unknown field or fail; the doctor tries it.",
        one_of("structured_outputs", "guided_decoding", "none"), "structured_outputs")
    structured_output_reasoning: Literal["grammar", "engine"] = option(
        GENERATION, "How Triton's vLLM backend learns that structured output begins after the reasoning of a chat: "
        "grammar sends both as one structural tag, engine sends the constraint alone, for an engine with "
        "reasoning_parser in its model.json.",
        one_of("grammar", "engine"), "grammar")
    verify_structured_output: bool = option(
        GENERATION, "Validate finished texts against the constraint of their request, and answer 502 if the backend "
        "did not hold it. Needs the extra structured.", BOOLEAN, False)

    predictor_host: str = option(
        PREDICTOR, "Required, except for --predictor_protocol=none. Address of Triton: HOST or HOST:PORT, optionally "
        "after http:// or https://.",
        plain_text("HOST[:PORT]"), MISSING, variables=["PREDICTOR_HOST"])
    predictor_model: str | None = option(
        PREDICTOR, "Name of the model on the predictor, if it differs.", PREDICTOR_NAME, default_text="--model_name")
    predictor_port: int | None = option(
        PREDICTOR, "Port of Triton, if --predictor_host has none.", integer(1, 65535), variables=["PREDICTOR_PORT"],
        default_text="80, or 443 with TLS")
    predictor_protocol: Literal["v2", "grpc-v2", "none"] = option(
        PREDICTOR, "Protocol to the predictor: the open inference protocol over REST (v2) or gRPC (grpc-v2); none "
        "serves only the tokenizer and the chat template, without a predictor.",
        one_of("v2", "grpc-v2", "none", why="Triton has no v1"), "v2", aliases=("protocol",),
        variables=[Variable("PREDICTOR_PROTOCOL", lambda text: None if scheme_as_switch(text) else text)])
    predictor_use_ssl: bool = option(
        PREDICTOR, "Connect to the predictor over TLS. A scheme in --predictor_host takes precedence; the variable "
        "PREDICTOR_PROTOCOL may be http or https.", BOOLEAN, False,
        variables=[Variable("PREDICTOR_PROTOCOL", scheme_as_switch)])
    predictor_ca_file: str | None = option(
        PREDICTOR, "File of CA certificates to trust.", PATH, variables=["REQUESTS_CA_BUNDLE"],
        default_text="the system's")
    predictor_ca_path: str | None = option(
        PREDICTOR, "Folder of CA certificates to trust, in OpenSSL's format.", plain_text("FOLDER", "a folder"),
        variables=["SSL_CERT_DIR"], default_text="the system's")
    predictor_cert_file: str | None = option(
        PREDICTOR, "Client certificate for a predictor that requires one (mutual TLS). A renewed file is reloaded "
        "over gRPC, but not over REST.", PATH)
    predictor_key_file: str | None = option(PREDICTOR, "Private key of --predictor_cert_file.", PATH)
    predictor_request_timeout_seconds: float = option(
        PREDICTOR, "Timeout of a call to the predictor in seconds, retries included.", SECONDS, 600.0)
    predictor_request_retries: int = option(
        PREDICTOR, "Maximum retries of a call that did not reach the predictor, got no beginning of an answer, or "
        "found it unavailable (503, 404, UNAVAILABLE). Pauses grow from 0.05 to 2 seconds: 10 retries bridge an outage "
        "of 11 seconds, 30 one of 51.", integer(0, 100), 0)
    predictor_retry_budget: float = option(
        PREDICTOR, "Average retries per call, in addition to one per second and a reserve of ten. The budget keeps "
        "retries from multiplying the load in an outage.", number(0, 100, zero=True), 0.1)
    predictor_circuit_failures: int = option(
        PREDICTOR, "Consecutive attempts without a reachable predictor that open the circuit breaker: nothing is "
        "sent until the predictor reports that it is ready. Calls get 503, at once or after the time that "
        "--predictor_request_retries bridges. 0 means never.",
        integer(0, 10**6), 5)
    predictor_check_seconds: float = option(
        PREDICTOR, "Seconds between two checks of the model's metadata, which detect that another version is "
        "loaded.", SECONDS, 30.0)
    enable_predictor_health_check: bool = option(
        PREDICTOR, "Report ready only while the predictor does and, after three consecutive errors of the model, "
        "answers a trial inference.", BOOLEAN, False)
    predictor_shared_memory: Literal["auto", "off"] = option(
        PREDICTOR, "Let the predictor write large outputs into shared memory; auto does so if the predictor sees "
        "the service's /dev/shm.", one_of("auto", "off"), "auto")
    predictor_shared_memory_bytes: int = option(
        PREDICTOR, "Bytes of shared memory per worker, enough for the outputs of all batches in flight; outputs that "
        "do not fit travel in the response. Allocated at the first large answer, or at the start if all answers of "
        "the model are large, such as the logits of a vocabulary.", integer(2**16, 2**40),
        64 * 2**20)
    predictor_shared_memory_min_bytes: int = option(
        PREDICTOR, "Minimum bytes of a batch's outputs to travel through shared memory.", integer(1, 2**40),
        128 * 2**10)
    tensor_input_names: tuple[str, ...] = option(
        PREDICTOR, "Model inputs to send.", NAMES, (), many=True,
        default_text="all that the model declares")
    tensor_output_names: tuple[str, ...] = option(
        PREDICTOR, "Model outputs to read.", NAMES, (), many=True,
        default_text="matched by name and shape")
    grpc_max_send_message_length: int = option(
        PREDICTOR, "Maximum bytes of a gRPC message to the predictor; -1 is unlimited.", integer(-1), -1)
    grpc_max_receive_message_length: int = option(
        PREDICTOR, "Maximum bytes of a gRPC message from the predictor; -1 is unlimited.", integer(-1), -1)

    models: str | None = option(
        SEVERAL, "File (YAML or JSON) with a list of models to serve. The keys of an entry are the flags of the groups "
        "Model and tokenizer, Answers, Text generation and Predictor, without dashes; flags on the command line are "
        "the defaults of all entries. A changed file is reloaded. It has at most 1,000 models.", PATH)
    model_repository: str | None = option(
        SEVERAL, "Triton's model repository: every folder with a tokenizer, as export writes it, is served. A changed "
        "folder is reloaded.", LOCAL_FOLDER)
    ready_when: Literal["all", "any"] = option(
        SEVERAL, "Whether the service is ready when all models are, or when any is.", one_of("all", "any"), "all")
    enable_model_control: bool = option(
        SEVERAL, "Accept POST /v2/repository/models/NAME/load and /unload, over gRPC too: Triton (with "
        "--model-control-mode=explicit) loads or unloads the model, and the service begins or ends to serve it. "
        "Requires --model_control_keys_file.", BOOLEAN, False)
    model_control_keys_file: str | None = option(
        SEVERAL, "File with the keys of --enable_model_control, in the form of --api_keys_file. Loading and unloading "
        "need one of these keys; a key of --api_keys_file does not suffice. A changed file is reloaded.", PATH)

    host: str = option(
        SERVER, "Address to listen on.", plain_text("ADDRESS", "an address", r"[^\s/]+"), "0.0.0.0")  # noqa: S104
    http_port: int = option(SERVER, "Port to listen on; 0 chooses a free one.", integer(0, 65535), 8080)
    enable_grpc: bool = option(SERVER, "Serve the V2 protocol over gRPC too.", BOOLEAN, True)
    enable_grpc_compression: bool = option(
        SERVER, "Accept compressed messages over gRPC. Each is inflated, to at most --max_request_bytes, before the "
        "service can refuse it. Without this flag such calls get UNIMPLEMENTED; clients compress only if configured "
        "to.", BOOLEAN, False)
    grpc_port: int = option(SERVER, "Port for gRPC; 0 chooses a free one.", integer(0, 65535), 8081)
    grpc_max_connection_age: float = option(
        SERVER, "Seconds until a gRPC connection is closed, so that clients connect again, perhaps to another replica. "
        "Calls in flight finish first. 0 is no limit.", AGE, 0.0)
    grpc_max_connection_age_grace: float = option(
        SERVER, "Seconds after which a closing connection's calls are ended, for streams that never end by "
        "themselves. 0 is no limit.", AGE, 0.0)
    openai_route_prefix: str = option(
        SERVER, "Path before /v1 in the routes of the OpenAI API; may be empty.",
        plain_text("PREFIX", "a path without spaces and ? # % { }", r"[^\s?#%{}]*"), "openai",
        may_be_empty=True, variables=["KSERVE_OPENAI_ROUTE_PREFIX"])
    enable_token_inputs: bool = option(
        SERVER, "Accept token ids as input of OpenAI's embeddings. They must come from this model's tokenizer; clients "
        "that use tiktoken send other ids.", BOOLEAN, False)
    enable_playground: bool = option(
        SERVER, "Serve a page at /playground to try the model in a browser; / redirects browsers there.", BOOLEAN,
        False)
    enable_docs_url: bool = option(
        SERVER, "Serve the API reference at /docs, where requests can be tried.", BOOLEAN, False)
    workers: int = option(
        SERVER,
        "Number of worker processes that share the port. Above 1, one more forms their batches. A thousand texts a "
        "second then take 0.3 cores for 9 words each, 0.7 for 250.",
        integer(1, 1024), 1)
    timeout_keep_alive: int = option(
        SERVER, "Seconds until an idle connection is closed. Set more than the proxy's.", integer(0), 65)
    client_timeout_seconds: float = option(
        SERVER, "Seconds for a client to send a whole request, else it gets 408, and to accept a part of an "
        "answer (over gRPC, one message of a stream).", SECONDS, 60.0)
    grace_period_seconds: float = option(
        SERVER, "Seconds for requests in flight to finish after SIGTERM or SIGINT. Set a few less than the "
        "platform's grace period.", number(0, 10**6, zero=True, metavar="SECONDS"), 25.0)
    ssl_certfile: str | None = option(
        SERVER, "Certificate for HTTPS and for gRPC over TLS; a renewed file is reloaded.", PATH)
    ssl_keyfile: str | None = option(SERVER, "Private key of --ssl_certfile.", PATH)
    api_keys_file: str | None = option(
        SERVER, "File with one API key per line (# begins a comment); requests without a key are refused. "
        "A changed file is reloaded.", PATH, default_text="no key required")
    cors_allow_origin: tuple[str, ...] = option(
        SERVER, "Origins of pages that may call the service from a browser (CORS); * means any.",
        name_list("ORIGIN,...", "* or origins such as https://app.example.com", r"\*|[a-z][a-z0-9+.-]*://[^/\s*A-Z]+"),
        (), many=True, default_text="none")
    allowed_hosts: tuple[str, ...] = option(
        SERVER, "Hosts allowed in the Host header, without port; *.example.com means all sub-domains, * any host. "
        "Other requests get 400, except health and metrics. Protects against DNS rebinding; does not apply to gRPC.",
        name_list("HOST,...", "* or host names without a port, such as models.example.com,*.example.com", HOST_NAME),
        ("*",), many=True,
        default_text="*; with --enable_playground localhost, 127.0.0.1, ::1 and --host, if that is one address")
    event_loop: Literal["auto", "asyncio", "uvloop"] = option(
        SERVER, "Event loop; auto means uvloop if it is installed.", one_of("auto", "asyncio", "uvloop"), "auto")
    max_asyncio_workers: int = option(
        SERVER, "Number of tokenizer threads (max_asyncio_workers is KServe's name for them). CPUs are those that "
        "the process may use, within the quota of its container.",
        integer(1, 1024), default_threads, default_text="min(32, CPUs + 4)")

    strict_flags: bool = option(
        SERVER, "Refuse to start with unknown flags or variables, instead of warning about each.", BOOLEAN, False)

    max_connections: int = option(
        LIMITS, "Maximum open connections per worker, for HTTP and for gRPC each. Further ones are closed, over "
        "HTTP after a 503.", integer(1), 16384)
    max_header_bytes: int = option(
        LIMITS, "Maximum bytes of an HTTP request's head: the request line and the headers.", integer(1024, 2**24),
        64 * 2**10)
    max_request_bytes: int = option(LIMITS, "Maximum bytes of a request's body.", integer(1, 2**40), 16 * 2**20)
    max_bytes_in_flight: int = option(
        LIMITS, "Maximum bytes that all requests in one worker take: bodies, incomplete ones included, copies of "
        "texts, windows and answers. Further requests get 429, one that would not fit alone 413. A value below "
        "--max_request_bytes counts as --max_request_bytes.", integer(1, 2**40), 256 * 2**20)
    max_json_depth: int = option(
        LIMITS, "Maximum nesting of JSON that a chat template renders: tools, arguments of tool calls, "
        "chat_template_kwargs.", integer(1, 200), 64)  # MAX_NESTING of any JSON
    max_instances: int = option(LIMITS, "Maximum instances of a request.", integer(1), 2048)
    max_text_length: int = option(LIMITS, "Maximum characters of a text.", integer(1), 250_000)
    max_total_length: int = option(
        LIMITS, "Maximum characters of all sequences of a request; a text counts once for each sequence that "
        "contains it.", integer(1), 4_000_000)
    max_sequences: int = option(
        LIMITS, "Maximum sequences of a request: texts, pairs (an instance times its labels or texts) and "
        "windows.", integer(1), 2048)
    max_window_tokens: int = option(
        LIMITS, "Maximum tokens of all windows of a request; a token counts in each window that has it.", integer(1),
        2 * 2**20)
    max_answer_values: int = option(
        LIMITS, "Maximum numbers and words in all answers of a request, such as the probabilities of a "
        "vocabulary.",
        integer(1), 1_000_000)
    max_concurrent_requests: int = option(
        LIMITS, "Maximum requests in flight per worker; further ones get 429.", integer(1), 1024)
    max_predictor_response_bytes: int = option(
        LIMITS, "Maximum bytes of a response of the predictor.", integer(1), 2**30)
    max_predictor_event_bytes: int = option(
        LIMITS, "Maximum bytes of one response in a stream of the predictor (an event or a message), of a text that it "
        "returns whole over gRPC, and of its answers to other requests than inferences, such as a model's "
        "configuration.", integer(1), 2**22)
    max_queued_tokens: int = option(
        LIMITS, "Maximum tokens of all requests in flight per worker; once they are reached, further requests "
        "get 429.", integer(1), 262_144)
    max_batches_in_flight: int | None = option(
        LIMITS, "Maximum concurrent batches at the predictor; texts that arrive meanwhile form the next batch.",
        integer(1), default_text="the model's instances + 1")
    max_batch_tokens: int = option(
        LIMITS, "Maximum tokens of a batch, padding included; a longer text is sent alone. Batches stay smaller "
        "if padding would cost the model more time than batching saves, which the service learns from the model's "
        "response times.", integer(1), 16384)
    pad_to_multiple_of: int = option(
        LIMITS, "Pad every batch, even of one text, to a multiple of this many tokens, or to the model's "
        "length. Few lengths suit runtimes that compile for each one (OpenVINO, TensorRT, torch.compile, XLA). "
        "The model needs attention_mask; inputs of fixed length keep theirs. Among generative models it applies to "
        "those that return logits for whole texts.", integer(1), 1)
    max_batch_output_bytes: int | None = option(
        LIMITS, "Maximum bytes of a batch's outputs. The logits of a vocabulary take megabytes, key-value caches "
        "more.",
        integer(1), default_text="4194304 (8388608 through shared memory); 268435456 for generation from logits")
    max_cache_bytes: int = option(
        LIMITS, "Maximum bytes of the key-value caches of all texts in generation, for models with "
        "past_key_values. A text reserves room for its prompt and max_tokens when it begins; without room it "
        "waits, and gets 413 if it never fits.", integer(1), 2**30)
    max_label_vectors: int = option(
        LIMITS, "Maximum vectors of labels that a worker keeps for each bi-encoder; those that were not used for "
        "longest are computed again. 0 keeps none.", integer(0), 4096)
    max_constraint_bytes: int = option(
        LIMITS, "Maximum bytes of compiled constraints per worker, in use and cached, for models that return logits. "
        "Without room, a request gets 429, and 413 if its constraint never fits.", integer(2**22, 2**40), 256 * 2**20)
    max_children: int = option(
        LIMITS, "Maximum child processes per worker that compile constraints and verify texts, one task each at a "
        "time; a request that waits 10 s for one gets 429.", integer(1, 1024), 2)
    child_timeout_seconds: float = option(
        LIMITS, "Maximum CPU time of a child process for one constraint, in seconds; five times as much by the clock. "
        "A constraint that takes longer gets 413.", SECONDS, 2.0)
    max_child_bytes: int = option(
        LIMITS, "Maximum memory of a child process for one constraint; one that takes more gets 413.",
        integer(2**22, 2**40), 128 * 2**20)

    log_level: int = option(
        LOGGING, "Logging level: debug, info, warning, error, critical or a number.", LOG_LEVEL, 20,
        variables=["LOG_LEVEL", "KSERVE_LOGLEVEL"])
    configure_logging: bool = option(LOGGING, "Set up logging.", BOOLEAN, True)
    log_config_file: str | None = option(
        LOGGING, "Logging configuration to use instead: a dictConfig in .json or .yaml, any other file a fileConfig.",
        PATH)
    log_format: Literal["text", "json"] = option(
        LOGGING, "Format of log lines: text, or JSON objects with time, level, logger, message and request_id.",
        one_of("text", "json"), "text")
    access_log_format: str | None = option(
        LOGGING, "Log every request in this format, such as '%(h)s %(t)s \"%(r)s\" %(s)s %(B)s %(L)s'.",
        plain_text("FORMAT"))
    enable_latency_logging: bool = option(LOGGING, "Log the duration of each stage of a request.", BOOLEAN, True)
    enable_log_requests: bool = option(LOGGING, "Log the texts of requests.", BOOLEAN, False)
    disable_log_requests: bool = option(
        LOGGING, "Do not log the texts of requests, even with --enable_log_requests.", BOOLEAN, False)
    max_log_len: int | None = option(
        LOGGING, "Maximum characters of a text in the log.", integer(0), default_text="unlimited")
    enable_server_timing: bool = option(
        LOGGING, "Report the duration of the stages of a request in the header Server-Timing, except tokenization.",
        BOOLEAN, True)
    enable_tokenize_timing: bool = option(
        LOGGING, "Report the duration of tokenization in Server-Timing too. It tells a client which words others have "
        "sent, unless --enable_word_cache=false.", BOOLEAN, False)
    otlp_endpoint: str | None = option(
        LOGGING, "Collector of OpenTelemetry spans, over OTLP/HTTP, such as http://collector:4318.",
        plain_text("URL", "an http:// or https:// URL", r"https?://[^\s/]+(/\S*)?"))
    otlp_sample_ratio: float = option(
        LOGGING, "Share of requests to trace if the client's traceparent does not decide.",
        number(0, 1, zero=True), 1.0)
    # fmt: on


def described_predictor(config: Config) -> str:
    """Returns a phrase about the predictor of a model, for logs and reports."""
    if config.predictor_protocol == "none":
        return "without a predictor"
    return f"predictor {config.predictor_host} over {config.predictor_protocol}"


def no_effect(name: str, help: str, why: str) -> Option:
    """Declares an option of KServe's runtime that has no effect here."""
    effect = f"has no effect here: {why}"
    return Option(name, "Accepted without effect", f"{help} It {effect}.", plain_text(), no_effect=effect)


IGNORED: tuple[Option, ...] = (
    no_effect("backend", "KServe: the engine that runs the model.", "the predictor runs the model"),
    no_effect("dtype", "KServe: the data type of the weights.", "the predictor holds the weights"),
    no_effect("max_threads", "KServe: threads of the gRPC server.", "no thread pool serves requests"),
)
"""Options without effect, accepted so that KServe's manifests work unchanged. The log mentions the options in use."""


def all_options() -> tuple[Option, ...]:
    """Returns the options of Config, then the options without effect."""
    return (*options_of(Config), *IGNORED)


def parse_config(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[Config, list[str]]:
    """Returns the configuration, and warnings to log after logging setup. Raises ConfigError with one line: the flag or
    variable, its value and the expected form."""
    return make_config(*collect(all_options(), argv, environ))


def make_config(settings: Mapping[str, Setting], notes: Sequence[str] = ()) -> tuple[Config, list[str]]:
    """Returns the configuration that settings make by RULES, and ``notes`` with the warnings of the rules. Raises
    ConfigError."""
    draft = Draft(settings, {name: setting.value() for name, setting in settings.items()}, [*notes])
    for rule in RULES:
        rule(draft)
    ignored = {option.name for option in IGNORED}
    return Config(**{name: value for name, value in draft.values.items() if name not in ignored}), draft.notes
