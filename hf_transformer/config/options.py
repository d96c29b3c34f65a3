"""Everything that can be set: one field of Config declares a flag, its variables, default, limits and help.

Every flag also has a variable of its own, HF_TRANSFORMER_<FLAG IN CAPITALS>; ``variables`` are the further
names that KServe and its users know. Bare names such as HTTP_PORT are not among them: Kubernetes sets
variables of that form for its services. A flag wins over a variable, a variable over the default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hf_transformer.config.ignored import IGNORED
from hf_transformer.config.option import Option, Variable, option, options_of
from hf_transformer.config.parser import collect
from hf_transformer.config.rules import RULES, Draft
from hf_transformer.config.schemes import scheme_as_switch, unless_scheme
from hf_transformer.config.values import Boolean, Choice, Integer, Level, Names, Number, SecretText, Text

MODEL = "Model and tokenizer"
ANSWERS = "Answers"
GENERATION = "Text generation"
PREDICTOR = "Predictor"
SERVER = "Server"
LIMITS = "Limits"
LOGGING = "Logging"

PROTOCOLS = Choice(("v2", "grpc-v2"), why="Triton has no v1")
PATH = Text("FILE", "the path of a file")
BOOLEAN = Boolean()


def default_threads() -> int:
    """Threads for tokenizing, by the CPUs that this process may run on."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(32, allowed + 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of one service, checked and complete; the same object goes to every worker process."""

    # fmt: off
    model_name: str = option(
        MODEL, "Name of the model in the URL paths, and on the predictor.",
        Text("NAME", "a name without spaces and / ? # %", r"[^\s/?#%]+"), "model",
        variables=["INFERENCE_SERVICE_NAME"])
    model_dir: str = option(
        MODEL, "Local folder with config.json and the tokenizer's files. Ignored where --model_id is given.",
        Text("FOLDER", "a local folder (a model on the hub is --model_id)", r"(?!\w+://).+"), "/mnt/models")
    model_id: str | None = option(
        MODEL, "Model on the Hugging Face hub, such as bert-base-uncased.", Text("ID"))
    model_revision: str | None = option(
        MODEL, "Revision of --model_id: a branch, tag or commit.", Text("REVISION"),
        variables=["MODEL_REVISION"], default_text="the main branch")
    tokenizer_revision: str | None = option(
        MODEL, "Revision of the tokenizer.", Text("REVISION"), default_text="that of the model")
    hf_token: str | None = option(
        MODEL, "Token for private models on the hub. Better a variable: flags show in process lists.",
        SecretText("TOKEN"), secret=True, variables=["HF_TOKEN"])
    trust_remote_code: bool = option(
        MODEL, "Allow a tokenizer that comes with Python code of its own.", BOOLEAN, False, switch=True,
        variables=["TRUST_REMOTE_CODE"])
    task: str | None = option(
        MODEL, "What the model does: fill_mask, sequence_classification, zero_shot_classification, rerank, "
        "token_classification, question_answering, text_embedding, feature_extraction, text_generation or "
        "text2text_generation. Hyphens and the names of Hugging Face pipelines are understood.",
        Text("NAME"), variables=["TASK"], default_text="by the architecture in config.json")
    max_model_len: int | None = option(
        MODEL, "Tokens that a text is cut to, special tokens included.", Integer(1), aliases=("max_length",),
        default_text="the smaller of the tokenizer's and the model's limit")
    disable_lower_case: bool = option(
        MODEL, "Do not lower-case text, even where the tokenizer does.", BOOLEAN, False, switch=True)
    disable_special_tokens: bool = option(
        MODEL, "Do not add special tokens such as [CLS].", BOOLEAN, False, switch=True)
    enable_word_cache: bool = option(
        MODEL, "Keep the token ids of words that were encoded before, in 6 MiB at most; this saves a third of a short "
        "request's CPU time.", BOOLEAN, True)
    return_token_type_ids: bool = option(
        MODEL, "Send token type ids to the predictor.", BOOLEAN, False, switch=True)

    return_probabilities: bool = option(
        ANSWERS, "Answer with probabilities.", BOOLEAN, False, switch=True)
    return_raw_logits: bool = option(
        ANSWERS, "Answer with the raw logits. Excludes --return_probabilities.", BOOLEAN, False, switch=True)
    output_format: Literal["kserve", "pipeline"] = option(
        ANSWERS, "Answers as KServe's runtime gives them, or as a Hugging Face pipeline does.",
        Choice(("kserve", "pipeline")), "kserve")

    return_offsets_mapping: bool = option(
        ANSWERS, "Answer with the offsets of the tokens too (token_classification).", BOOLEAN, False, switch=True)
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] = option(
        ANSWERS, "How tokens become entities in the pipeline format of token_classification.",
        Choice(("none", "simple", "first", "average", "max")), "none", variables=["AGGREGATION_STRATEGY"])
    on_overflow: Literal["truncate", "error", "window"] = option(
        ANSWERS, "What becomes of a text longer than the model: cut off, refused with 413, or read in windows "
        "(token_classification, question_answering and text_embedding).",
        Choice(("truncate", "error", "window")), "truncate")
    stride: int | None = option(
        ANSWERS, "Tokens that neighbouring windows share.", Integer(0),
        default_text="a quarter of the model's length; question_answering: half of it, 128 at most")

    generation_interface: Literal["auto", "tokens", "text", "logits"] = option(
        GENERATION, "What a generative model takes: token ids (TensorRT-LLM), text (vLLM, Python backends), or ids for "
        "which it gives the next token's logits; auto goes by its tensors.",
        Choice(("auto", "tokens", "text", "logits")), "auto")
    chat_template: str | None = option(
        GENERATION, "Chat template (Jinja), or a file that holds it.", Text("FILE or TEXT"),
        default_text="the tokenizer's")
    max_new_tokens: int | None = option(
        GENERATION, "New tokens that a request may ask for in each text, over every API; more are refused with 413.",
        Integer(1), default_text="what the model's length leaves")
    generation_max_length: int = option(
        GENERATION, "Tokens of a prompt and its continuation together (of an encoder-decoder: of the answer), where a "
        "request says nothing. MAX_LENGTH is not --max_length. This flag and those below are for V1, V2 and generate; "
        "OpenAI's API has OpenAI's defaults.", Integer(1), 20, variables=["MAX_LENGTH"])
    do_sample: bool = option(
        GENERATION, "Sample, not always take the likeliest token.", BOOLEAN, False, variables=["DO_SAMPLE"])
    temperature: float = option(
        GENERATION, "Sampling temperature.", Number(0, 100, zero=True), 1.0, variables=["TEMPERATURE"])
    top_k: int = option(
        GENERATION, "Sample from this many likeliest tokens; 0 is all.", Integer(0), 50, variables=["TOP_K"])
    top_p: float = option(
        GENERATION, "Sample from the likeliest tokens of this total probability.", Number(1e-6, 1), 1.0,
        variables=["TOP_P"])
    return_full_text: bool = option(
        GENERATION, "Answer with the prompt and what continues it (text_generation).", BOOLEAN, True,
        variables=["RETURN_FULL_TEXT"])

    predictor_host: str = option(
        PREDICTOR, "Required. Where Triton listens: HOST or HOST:PORT, also after http:// or https://.",
        Text("HOST[:PORT]"), required=True, variables=["PREDICTOR_HOST"])
    predictor_port: int | None = option(
        PREDICTOR, "Port, where --predictor_host has none.", Integer(1, 65535), variables=["PREDICTOR_PORT"],
        default_text="80, or 443 with TLS")
    predictor_protocol: Literal["v2", "grpc-v2"] = option(
        PREDICTOR, "Open inference protocol over REST (v2) or gRPC (grpc-v2).", PROTOCOLS, "v2",
        aliases=("protocol",), variables=[Variable("PREDICTOR_PROTOCOL", unless_scheme)])
    predictor_use_ssl: bool = option(
        PREDICTOR, "Talk to the predictor over TLS. A scheme in --predictor_host decides; the variable "
        "PREDICTOR_PROTOCOL may be http or https.",
        BOOLEAN, False, variables=[Variable("PREDICTOR_PROTOCOL", scheme_as_switch)])
    predictor_ca_file: str | None = option(
        PREDICTOR, "File of certificates to trust.", PATH, variables=["REQUESTS_CA_BUNDLE"],
        default_text="the system's")
    predictor_ca_path: str | None = option(
        PREDICTOR, "Folder of certificates to trust, in OpenSSL's form.", Text("FOLDER", "a folder"),
        variables=["SSL_CERT_DIR"], default_text="the system's")
    predictor_cert_file: str | None = option(
        PREDICTOR, "Certificate to show to a predictor that asks for one (mutual TLS). Over gRPC it is read again when "
        "it is renewed, over REST it is read at the start.", PATH)
    predictor_key_file: str | None = option(PREDICTOR, "Private key of --predictor_cert_file.", PATH)
    predictor_request_timeout_seconds: float = option(
        PREDICTOR, "Seconds that one call to the predictor may take, retries included.",
        Number(0, 10**6, metavar="SECONDS"), 600.0)
    predictor_request_retries: int = option(
        PREDICTOR, "Times that a call is tried again when the predictor was not reached, did not begin to answer, or "
        "said that it can't now (503, UNAVAILABLE).", Integer(0, 100), 0)
    predictor_retry_budget: float = option(
        PREDICTOR, "Retries per call on average, beside one a second and ten in reserve; more are not made, so that "
        "they can't multiply an outage.", Number(0, 100, zero=True), 0.1)
    predictor_circuit_failures: int = option(
        PREDICTOR, "Calls in a row that find the predictor unavailable until it counts as dead: calls are then refused "
        "with 503 at once, until it says that it is ready. 0 is never.", Integer(0, 10**6), 5)
    predictor_check_seconds: float = option(
        PREDICTOR, "Seconds between two looks at the model's metadata, which may be another version's by then.",
        Number(0, 10**6, metavar="SECONDS"), 30.0)
    enable_predictor_health_check: bool = option(
        PREDICTOR, "Be ready only while the predictor says that it is, and, after three errors of the model in a row, "
        "while it answers a trial.", BOOLEAN, False, switch=True)
    predictor_shared_memory: Literal["auto", "off"] = option(
        PREDICTOR, "Have the predictor write large outputs into shared memory; auto does where it sees our /dev/shm.",
        Choice(("auto", "off")), "auto")
    predictor_shared_memory_bytes: int = option(
        PREDICTOR, "Bytes of shared memory that each worker takes: when it has found a model all of whose answers are "
        "large, such as the logits of a vocabulary, else once there is a large one. Enough for the outputs of all "
        "batches in flight. What finds no room travels in the response.", Integer(2**16, 2**40), 64 * 2**20)
    predictor_shared_memory_min_bytes: int = option(
        PREDICTOR, "Bytes of a batch's outputs from which on they travel through shared memory.", Integer(1, 2**40),
        128 * 2**10)
    tensor_input_names: tuple[str, ...] = option(
        PREDICTOR, "The model's inputs that are sent.", Names(), (), many=True,
        default_text="all that the model declares")
    tensor_output_names: tuple[str, ...] = option(
        PREDICTOR, "The model's outputs that are read.", Names(), (), many=True,
        default_text="found by name and shape")
    grpc_max_send_message_length: int = option(
        PREDICTOR, "Bytes of the largest gRPC message sent; -1 is unlimited.", Integer(-1), -1)
    grpc_max_receive_message_length: int = option(
        PREDICTOR, "Bytes of the largest gRPC message received; -1 is unlimited.", Integer(-1), -1)

    host: str = option(
        SERVER, "Address to listen on.", Text("ADDRESS", "an address", r"[^\s/]+"), "0.0.0.0")  # noqa: S104 - for a pod's probes
    http_port: int = option(SERVER, "Port to listen on; 0 takes a free one.", Integer(0, 65535), 8080)
    enable_grpc: bool = option(SERVER, "Serve the V2 protocol over gRPC too.", BOOLEAN, True)
    grpc_port: int = option(SERVER, "Port for gRPC; 0 takes a free one.", Integer(0, 65535), 8081)
    openai_route_prefix: str = option(
        SERVER, "What comes before /v1 in the routes of the OpenAI API; may be empty.",
        Text("PREFIX", "a path without spaces and ? # % { }", r"[^\s?#%{}]*"), "openai", may_be_empty=True,
        variables=["KSERVE_OPENAI_ROUTE_PREFIX"])
    enable_docs_url: bool = option(SERVER, "Serve a page to read and try the API at /docs.", BOOLEAN, False)
    workers: int = option(SERVER, "Processes that share the port.", Integer(1, 1024), 1)
    timeout_keep_alive: int = option(
        SERVER, "Seconds after which an idle connection is closed; longer than the proxy's.", Integer(0), 65)
    client_timeout_seconds: float = option(
        SERVER, "Seconds that a client has to send a request, head and body together, before it gets 408; and to take "
        "some of an answer, over gRPC one message of a stream.", Number(0, 10**6, metavar="SECONDS"), 60.0)
    grace_period_seconds: float = option(
        SERVER, "Seconds that requests in flight have to finish once a signal ends the service; a few less than "
        "whatever kills it after.", Number(0, 10**6, zero=True, metavar="SECONDS"), 25.0)
    ssl_certfile: str | None = option(
        SERVER, "Certificate to serve HTTPS, and gRPC over TLS, with; read again when it is renewed.", PATH)
    ssl_keyfile: str | None = option(SERVER, "Private key of --ssl_certfile.", PATH)
    api_keys_file: str | None = option(
        SERVER, "File with an API key in each line (# begins a comment); requests without one of them are refused. "
        "Read again when it changes.", PATH, default_text="no keys are asked for")
    cors_allow_origin: tuple[str, ...] = option(
        SERVER, "Origins whose pages may ask from a browser (CORS); * is any.",
        Names("ORIGIN,...", "* or origins such as https://app.example.com", r"\*|[a-z][a-z0-9+.-]*://[^/\s*A-Z]+"), (),
        many=True, default_text="none")
    event_loop: Literal["auto", "asyncio", "uvloop"] = option(
        SERVER, "Event loop; auto is uvloop where it is installed.", Choice(("auto", "asyncio", "uvloop")),
        "auto")
    max_asyncio_workers: int = option(
        SERVER, "Threads for tokenizing.", Integer(1, 1024), factory=default_threads,
        default_text="min(32, CPUs + 4)")

    max_connections: int = option(
        LIMITS, "Connections that are open in one worker, over HTTP and over gRPC each; more get 503 (over gRPC "
        "nothing) and are closed.", Integer(1), 16384)
    max_header_bytes: int = option(
        LIMITS, "Bytes of a request's head over HTTP: the first line and the headers.", Integer(1024, 2**24),
        64 * 2**10)
    max_request_bytes: int = option(LIMITS, "Bytes of a request's body.", Integer(1, 2**40), 16 * 2**20)
    max_bytes_in_flight: int = option(
        LIMITS, "Bytes of all requests' bodies that one worker holds, those that are not whole yet included; more are "
        "answered with 429. Where --max_request_bytes is more, that counts.",
        Integer(1, 2**40), 256 * 2**20)
    max_instances: int = option(LIMITS, "Instances in one request.", Integer(1), 1024)
    max_text_length: int = option(LIMITS, "Characters of one text.", Integer(1), 1_000_000)
    max_total_length: int = option(
        LIMITS, "Characters of all sequences of one request, a text counted as often as it is in one.", Integer(1),
        4_000_000)
    max_sequences: int = option(
        LIMITS, "Sequences that one request becomes: texts, pairs (an instance times its labels or texts) and windows.",
        Integer(1), 2048)
    max_answer_values: int = option(
        LIMITS, "Numbers and words in all answers of one request, such as probabilities of a whole vocabulary.",
        Integer(1), 1_000_000)
    max_concurrent_requests: int = option(
        LIMITS, "Requests in flight; more are answered with 429.", Integer(1), 1024)
    max_predictor_response_bytes: int = option(
        LIMITS, "Bytes of one response of the predictor.", Integer(1), 2**30)
    max_queued_tokens: int = option(
        LIMITS, "Tokens of all requests in flight; while there are as many, others are answered with 429.", Integer(1),
        262_144)
    max_batches_in_flight: int | None = option(
        LIMITS, "Batches at the predictor at a time; what comes meanwhile waits and leaves together.", Integer(1),
        default_text="the model's instances + 1")
    max_batch_tokens: int = option(
        LIMITS, "Tokens of a batch, padding included; a longer text is sent alone. Batches stay smaller, and have less "
        "padding, where more would cost the model more time than it saves, which is learnt from their times.",
        Integer(1), 16384)
    pad_to_multiple_of: int = option(
        LIMITS, "Every batch, also one of a single text, is as wide as a multiple of so many tokens, or as the most "
        "that the model takes: few widths, for runtimes that prepare themselves anew for each (OpenVINO, TensorRT, "
        "torch.compile, XLA). The model needs attention_mask; where its inputs have a fixed length, that counts. Of "
        "models that generate, those that give logits take it, for whole texts.", Integer(1), 1)
    max_batch_output_bytes: int | None = option(
        LIMITS, "Bytes of a batch's outputs: logits of a whole vocabulary are megabytes, and key-value caches more.",
        Integer(1), default_text="4194304 (8388608 through shared memory); 268435456 for texts made from logits")
    max_cache_bytes: int = option(
        LIMITS, "Bytes of the key-value caches of texts in the making, which grow with them. A text whose cache finds "
        "no room to begin is answered with 429, one that finds none to grow waits until others have ended, and what "
        "never fits is answered with 413. For models that take past_key_values.", Integer(1), 2**30)

    log_level: int = option(
        LOGGING, "What is logged: debug, info, warning, error, critical or a number.", Level(), 20,
        variables=["LOG_LEVEL", "KSERVE_LOGLEVEL"])
    configure_logging: bool = option(LOGGING, "Set up logging at all.", BOOLEAN, True)
    log_config_file: str | None = option(
        LOGGING, "Logging configuration to use instead: a dictConfig in .json or .yaml, else a fileConfig.",
        PATH)
    log_format: Literal["text", "json"] = option(
        LOGGING, "Log lines as text, or as JSON: an object with time, level, logger, message and request_id in each.",
        Choice(("text", "json")), "text")
    access_log_format: str | None = option(
        LOGGING, "Log every request in this form, such as '%(h)s %(t)s \"%(r)s\" %(s)s %(B)s %(L)s'.",
        Text("FORMAT"))
    enable_latency_logging: bool = option(LOGGING, "Log every request's time in each stage.", BOOLEAN, True)
    enable_log_requests: bool = option(LOGGING, "Log the texts of requests.", BOOLEAN, False, switch=True)
    disable_log_requests: bool = option(
        LOGGING, "Do not log the texts of requests, whatever --enable_log_requests says.", BOOLEAN, False,
        switch=True)
    max_log_len: int | None = option(
        LOGGING, "Characters of a text in the log.", Integer(0), default_text="unlimited")
    enable_server_timing: bool = option(
        LOGGING, "Tell in the header Server-Timing how long each stage of a request took.", BOOLEAN, True)
    otlp_endpoint: str | None = option(
        LOGGING, "Collector that OpenTelemetry spans are sent to, over OTLP/HTTP, such as http://collector:4318.",
        Text("URL", "an http:// or https:// URL", r"https?://[^\s/]+(/\S*)?"))
    otlp_sample_ratio: float = option(
        LOGGING, "Part of the requests that is traced where the client's traceparent does not say whether it is.",
        Number(0, 1, zero=True), 1.0)
    # fmt: on


def all_options() -> tuple[Option, ...]:
    """Every flag there is: the fields of Config, then those without an effect."""
    return (*options_of(Config), *IGNORED)


def parse_config(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[Config, list[str]]:
    """The configuration, and lines that are to be logged once logging is set up.

    Raises:
        ConfigError: one line that names the flag or variable, its value and what was expected.
    """
    given, notes = collect(all_options(), argv, environ)
    draft = Draft(given, {name: entry.value() for name, entry in given.items()}, notes)
    for rule in RULES:
        rule(draft)
    ignored = {declared.name for declared in IGNORED}
    return Config(**{name: value for name, value in draft.values.items() if name not in ignored}), draft.notes
