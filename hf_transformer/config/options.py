"""Everything that can be set: one field of Config declares a flag, its variables, default, limits and help.

Every flag also has a variable of its own, HF_TRANSFORMER_<FLAG IN CAPITALS>; ``variables`` are the further names that
KServe and its users know. Bare names such as HTTP_PORT are not among them: Kubernetes sets variables of that form for
its services.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

from hf_transformer.config.option import (
    BOOLEAN,
    LOG_LEVEL,
    TOKEN,
    Converter,
    Option,
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
from hf_transformer.config.rules import RULES, Draft

MODEL, ANSWERS, GENERATION = "Model and tokenizer", "Answers", "Text generation"
PREDICTOR, SERVER, LIMITS, LOGGING = "Predictor", "Server", "Limits", "Logging"

PATH = plain_text("FILE", "the path of a file")
SECONDS = number(0, 10**6, metavar="SECONDS")
NAMES = name_list("NAME,...", "different names separated by commas, such as input_ids,attention_mask")

HOST_NAME = r"\*|(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|\[?[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*\]?"
"""A name, an IPv4 or an IPv6 address. One bracket may be missing, since ``name_list`` takes it for that of a list."""


def local_folder(text: str) -> str:
    """The path of a local folder or of a file:// URI. Raises ValueError for another URI."""
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
    """What OpenShift AI's PREDICTOR_PROTOCOL says about TLS: it may be a scheme instead of a protocol."""
    return {"https": "true", "http": "false"}.get(text.strip().lower())


def default_threads() -> int:
    """Threads for tokenizing, by the CPUs that this process may run on."""
    return min(32, len(os.sched_getaffinity(0)) + 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings of one service, checked and complete; the same object goes to every worker process."""

    # fmt: off
    model_name: str = option(
        MODEL, "Name of the model in URL paths, and at the predictor.",
        plain_text("NAME", "a name without spaces and / ? # %", r"[^\s/?#%]+"), "model",
        variables=["INFERENCE_SERVICE_NAME"])
    model_dir: str = option(
        MODEL, "Local folder with config.json and the tokenizer's files, also as file:///FOLDER. Ignored if "
        "--model_id is given.", LOCAL_FOLDER, "/mnt/models")
    model_id: str | None = option(
        MODEL, "Model on the Hugging Face hub, such as bert-base-uncased.", plain_text("ID"))
    model_revision: str | None = option(
        MODEL, "Revision of --model_id: a branch, tag or commit.", plain_text("REVISION"),
        variables=["MODEL_REVISION"], default_text="the main branch")
    tokenizer_revision: str | None = option(
        MODEL, "Revision of the tokenizer.", plain_text("REVISION"), default_text="that of the model")
    hf_token: str | None = option(
        MODEL, "Token for private models on the hub. Better set as a variable: flags show in process lists.",
        TOKEN, variables=["HF_TOKEN"])
    trust_remote_code: bool = option(
        MODEL, "Allow a tokenizer that brings Python code of its own.", BOOLEAN, False,
        variables=["TRUST_REMOTE_CODE"])
    task: str | None = option(
        MODEL, "What the model does: fill_mask, sequence_classification, zero_shot_classification, rerank, "
        "token_classification, question_answering, text_embedding, feature_extraction, text_generation or "
        "text2text_generation. Hyphens and the names of Hugging Face pipelines work too.", plain_text("NAME"),
        variables=["TASK"], default_text="by the architecture in config.json")
    max_model_len: int | None = option(
        MODEL, "Longest text in tokens, special tokens included.", integer(1), aliases=("max_length",),
        default_text="the smaller of the tokenizer's and the model's limit")
    disable_lower_case: bool = option(
        MODEL, "Do not lower-case text, even if the tokenizer does.", BOOLEAN, False)
    disable_special_tokens: bool = option(MODEL, "Do not add special tokens such as [CLS].", BOOLEAN, False)
    enable_word_cache: bool = option(
        MODEL, "Keep the token ids of words already encoded, in at most 6 MiB; this saves a third of a short "
        "request's CPU time.", BOOLEAN, True)
    return_token_type_ids: bool = option(MODEL, "Send token type ids to the predictor.", BOOLEAN, False)

    return_probabilities: bool = option(ANSWERS, "Answer with probabilities.", BOOLEAN, False)
    return_raw_logits: bool = option(
        ANSWERS, "Answer with the raw logits. Excludes --return_probabilities.", BOOLEAN, False)
    output_format: Literal["kserve", "pipeline"] | None = option(
        ANSWERS, "Answers in the form of KServe's runtime, or of a Hugging Face pipeline.",
        one_of("kserve", "pipeline"),
        default_text="kserve; for token_classification with --aggregation_strategy pipeline")
    return_offsets_mapping: bool = option(
        ANSWERS, "Include the offsets of tokens in answers (token_classification).", BOOLEAN, False)
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] = option(
        ANSWERS, "How tokens become entities in the pipeline format of token_classification.",
        one_of("none", "simple", "first", "average", "max"), "none", variables=["AGGREGATION_STRATEGY"])
    on_overflow: Literal["truncate", "error", "window"] = option(
        ANSWERS, "What happens to a text longer than the model takes: it is cut off, refused with 413, or "
        "read in windows (token_classification, question_answering and text_embedding).",
        one_of("truncate", "error", "window"), "truncate")
    stride: int | None = option(
        ANSWERS, "Tokens that neighbouring windows share.", integer(0),
        default_text="a quarter of the model's length; question_answering: half of it, 128 at most")

    generation_interface: Literal["auto", "tokens", "text", "logits"] = option(
        GENERATION, "What a generative model takes: token ids (TensorRT-LLM), text (vLLM, Python backends), "
        "or token ids for which it returns the next token's logits; auto decides by its tensors.",
        one_of("auto", "tokens", "text", "logits"), "auto")
    chat_template: str | None = option(
        GENERATION, "Chat template (Jinja), or a file with one.", plain_text("FILE or TEXT"),
        default_text="the tokenizer's")
    max_new_tokens: int | None = option(
        GENERATION, "New tokens that a request may ask for per text, over every API; more are refused with "
        "413.", integer(1), default_text="what the model's length leaves")
    generation_max_length: int = option(
        GENERATION, "Tokens of a prompt and its continuation together (of an encoder-decoder: of the answer), "
        "if the request does not say. The variable MAX_LENGTH is not --max_length. This flag and those below "
        "apply to V1, V2 and generate; OpenAI's API has OpenAI's defaults.", integer(1), 20,
        variables=["MAX_LENGTH"])
    do_sample: bool = option(
        GENERATION, "Sample, instead of always taking the likeliest token.", BOOLEAN, False,
        variables=["DO_SAMPLE"])
    temperature: float = option(
        GENERATION, "Sampling temperature.", number(0, 100, zero=True), 1.0, variables=["TEMPERATURE"])
    top_k: int = option(
        GENERATION, "Sample from this many likeliest tokens; 0 means all.", integer(0), 50, variables=["TOP_K"])
    top_p: float = option(
        GENERATION, "Sample from the likeliest tokens of this total probability.", number(1e-6, 1), 1.0,
        variables=["TOP_P"])
    return_full_text: bool = option(
        GENERATION, "Answer with the prompt and its continuation (text_generation).", BOOLEAN, True,
        variables=["RETURN_FULL_TEXT"])

    predictor_host: str = option(
        PREDICTOR, "Required. Where Triton listens: HOST or HOST:PORT, optionally after http:// or https://.",
        plain_text("HOST[:PORT]"), MISSING, variables=["PREDICTOR_HOST"])
    predictor_port: int | None = option(
        PREDICTOR, "Port, if --predictor_host has none.", integer(1, 65535), variables=["PREDICTOR_PORT"],
        default_text="80, or 443 with TLS")
    predictor_protocol: Literal["v2", "grpc-v2"] = option(
        PREDICTOR, "Open inference protocol over REST (v2) or gRPC (grpc-v2).",
        one_of("v2", "grpc-v2", why="Triton has no v1"), "v2", aliases=("protocol",),
        variables=[Variable("PREDICTOR_PROTOCOL", lambda text: None if scheme_as_switch(text) else text)])
    predictor_use_ssl: bool = option(
        PREDICTOR, "Talk to the predictor over TLS. A scheme in --predictor_host decides; the variable "
        "PREDICTOR_PROTOCOL may be http or https.", BOOLEAN, False,
        variables=[Variable("PREDICTOR_PROTOCOL", scheme_as_switch)])
    predictor_ca_file: str | None = option(
        PREDICTOR, "File of certificates to trust.", PATH, variables=["REQUESTS_CA_BUNDLE"],
        default_text="the system's")
    predictor_ca_path: str | None = option(
        PREDICTOR, "Folder of certificates to trust, in OpenSSL's form.", plain_text("FOLDER", "a folder"),
        variables=["SSL_CERT_DIR"], default_text="the system's")
    predictor_cert_file: str | None = option(
        PREDICTOR, "Client certificate for a predictor that asks for one (mutual TLS). A renewed file is read "
        "again over gRPC, but not over REST.", PATH)
    predictor_key_file: str | None = option(PREDICTOR, "Private key of --predictor_cert_file.", PATH)
    predictor_request_timeout_seconds: float = option(
        PREDICTOR, "Seconds for one call to the predictor, retries included.", SECONDS, 600.0)
    predictor_request_retries: int = option(
        PREDICTOR, "Retries of a call if the predictor was not reached, did not begin to answer, or was "
        "unavailable (503, 404, UNAVAILABLE).", integer(0, 100), 0)
    predictor_retry_budget: float = option(
        PREDICTOR, "Retries per call on average, in addition to one per second and a reserve of ten. Further "
        "retries are not made, so that they can't multiply an outage.", number(0, 100, zero=True), 0.1)
    predictor_circuit_failures: int = option(
        PREDICTOR, "Calls in a row that find the predictor unavailable before it counts as dead. Further "
        "calls are refused with 503 at once, until it reports that it is ready. 0 means never.",
        integer(0, 10**6), 5)
    predictor_check_seconds: float = option(
        PREDICTOR, "Seconds between two checks of the model's metadata, which tell when another version is "
        "loaded.", SECONDS, 30.0)
    enable_predictor_health_check: bool = option(
        PREDICTOR, "Be ready only while the predictor reports that it is and, after three errors of the model "
        "in a row, answers a trial inference.", BOOLEAN, False)
    predictor_shared_memory: Literal["auto", "off"] = option(
        PREDICTOR, "Have the predictor write large outputs into shared memory; auto does so if it sees the "
        "service's /dev/shm.", one_of("auto", "off"), "auto")
    predictor_shared_memory_bytes: int = option(
        PREDICTOR, "Bytes of shared memory per worker, enough for the outputs of all batches in flight; what "
        "finds no room travels in the response. Taken at the first large answer, or as soon as the model is "
        "found if all its answers are large, such as the logits of a vocabulary.", integer(2**16, 2**40),
        64 * 2**20)
    predictor_shared_memory_min_bytes: int = option(
        PREDICTOR, "Size of a batch's outputs from which they travel through shared memory.", integer(1, 2**40),
        128 * 2**10)
    tensor_input_names: tuple[str, ...] = option(
        PREDICTOR, "Inputs of the model to send.", NAMES, (), many=True,
        default_text="all that the model declares")
    tensor_output_names: tuple[str, ...] = option(
        PREDICTOR, "Outputs of the model to read.", NAMES, (), many=True,
        default_text="found by name and shape")
    grpc_max_send_message_length: int = option(
        PREDICTOR, "Bytes of the largest gRPC message sent; -1 is unlimited.", integer(-1), -1)
    grpc_max_receive_message_length: int = option(
        PREDICTOR, "Bytes of the largest gRPC message received; -1 is unlimited.", integer(-1), -1)

    host: str = option(
        SERVER, "Address to listen on.", plain_text("ADDRESS", "an address", r"[^\s/]+"), "0.0.0.0")  # noqa: S104
    http_port: int = option(SERVER, "Port to listen on; 0 takes a free one.", integer(0, 65535), 8080)
    enable_grpc: bool = option(SERVER, "Serve the V2 protocol over gRPC too.", BOOLEAN, True)
    enable_grpc_compression: bool = option(
        SERVER, "Take compressed messages over gRPC. Each is inflated before it can be refused, to --max_request_bytes "
        "at most. Without it such a call is UNIMPLEMENTED; clients don't compress unless they are told to.", BOOLEAN,
        False)
    grpc_port: int = option(SERVER, "Port for gRPC; 0 takes a free one.", integer(0, 65535), 8081)
    openai_route_prefix: str = option(
        SERVER, "Path before /v1 in the routes of the OpenAI API; may be empty.",
        plain_text("PREFIX", "a path without spaces and ? # % { }", r"[^\s?#%{}]*"), "openai",
        may_be_empty=True, variables=["KSERVE_OPENAI_ROUTE_PREFIX"])
    enable_token_inputs: bool = option(
        SERVER, "Take token ids as input of OpenAI's embeddings. They must be of this model's tokenizer; clients that "
        "count tokens with tiktoken send other ids.", BOOLEAN, False)
    enable_playground: bool = option(
        SERVER, "Serve a page at /playground to try the model in a browser; / leads browsers there.", BOOLEAN, False)
    enable_docs_url: bool = option(
        SERVER, "Serve a page at /docs to read about the API and try it.", BOOLEAN, False)
    workers: int = option(SERVER, "Processes that share the port.", integer(1, 1024), 1)
    timeout_keep_alive: int = option(
        SERVER, "Seconds after which an idle connection is closed; longer than the proxy's.", integer(0), 65)
    client_timeout_seconds: float = option(
        SERVER, "Seconds that a client has to send a whole request before it gets 408, and to accept a part "
        "of an answer (over gRPC, one message of a stream).", SECONDS, 60.0)
    grace_period_seconds: float = option(
        SERVER, "Seconds that requests in flight have to finish after a signal. Set a few less than the "
        "platform waits before it kills the service.", number(0, 10**6, zero=True, metavar="SECONDS"), 25.0)
    ssl_certfile: str | None = option(
        SERVER, "Certificate for HTTPS and for gRPC over TLS; a renewed file is read again.", PATH)
    ssl_keyfile: str | None = option(SERVER, "Private key of --ssl_certfile.", PATH)
    api_keys_file: str | None = option(
        SERVER, "File with one API key per line (# begins a comment); requests without one of them are "
        "refused. A changed file is read again.", PATH, default_text="no keys needed")
    cors_allow_origin: tuple[str, ...] = option(
        SERVER, "Origins whose pages may call the service from a browser (CORS); * means any.",
        name_list("ORIGIN,...", "* or origins such as https://app.example.com", r"\*|[a-z][a-z0-9+.-]*://[^/\s*A-Z]+"),
        (), many=True, default_text="none")
    allowed_hosts: tuple[str, ...] = option(
        SERVER, "Names that the Host header of a request may have, without port; *.example.com means all sub-domains, "
        "* any host. Other requests get 400, but health and metrics are always answered. Protects against DNS "
        "rebinding; not for gRPC.",
        name_list("HOST,...", "* or host names without a port, such as models.example.com,*.example.com", HOST_NAME),
        ("*",), many=True,
        default_text="*; with --enable_playground localhost, 127.0.0.1, ::1 and --host, if that is one address")
    event_loop: Literal["auto", "asyncio", "uvloop"] = option(
        SERVER, "Event loop; auto means uvloop if it is installed.", one_of("auto", "asyncio", "uvloop"), "auto")
    max_asyncio_workers: int = option(
        SERVER, "Threads for tokenizing.", integer(1, 1024), default_threads,
        default_text="min(32, CPUs + 4)")

    strict_flags: bool = option(
        SERVER, "Refuse to start with unknown flags or variables, instead of a warning about each.", BOOLEAN, False)

    max_connections: int = option(
        LIMITS, "Open connections per worker, over HTTP and over gRPC each. Further ones are closed, over "
        "HTTP after a 503.", integer(1), 16384)
    max_header_bytes: int = option(
        LIMITS, "Bytes of a request's head over HTTP: the request line and the headers.", integer(1024, 2**24),
        64 * 2**10)
    max_request_bytes: int = option(LIMITS, "Bytes of a request's body.", integer(1, 2**40), 16 * 2**20)
    max_bytes_in_flight: int = option(
        LIMITS, "Bytes of all request bodies that one worker holds, incomplete ones included; further "
        "requests get 429. At least --max_request_bytes.", integer(1, 2**40), 256 * 2**20)
    max_json_depth: int = option(
        LIMITS, "Lists and objects within each other in what a chat template writes as JSON: tools, arguments of tool "
        "calls, chat_template_kwargs.", integer(1, 900), 64)
    max_instances: int = option(LIMITS, "Instances in one request.", integer(1), 2048)
    max_text_length: int = option(LIMITS, "Characters of one text.", integer(1), 250_000)
    max_total_length: int = option(
        LIMITS, "Characters of all sequences of one request; a text counts once for each sequence that "
        "contains it.", integer(1), 4_000_000)
    max_sequences: int = option(
        LIMITS, "Sequences made of one request: texts, pairs (an instance times its labels or texts) and "
        "windows.", integer(1), 2048)
    max_answer_values: int = option(
        LIMITS, "Numbers and words in all answers of one request, such as the probabilities of a vocabulary.",
        integer(1), 1_000_000)
    max_concurrent_requests: int = option(LIMITS, "Requests in flight; further ones get 429.", integer(1), 1024)
    max_predictor_response_bytes: int = option(
        LIMITS, "Bytes of one response of the predictor.", integer(1), 2**30)
    max_queued_tokens: int = option(
        LIMITS, "Tokens of all requests in flight; while there are this many, further requests get 429.",
        integer(1), 262_144)
    max_batches_in_flight: int | None = option(
        LIMITS, "Batches at the predictor at the same time; texts that arrive meanwhile wait and form the "
        "next batch.", integer(1), default_text="the model's instances + 1")
    max_batch_tokens: int = option(
        LIMITS, "Tokens of a batch, padding included; a longer text is sent alone. Batches stay smaller if "
        "their padding would cost the model more time than they save, which the service learns from their "
        "times.", integer(1), 16384)
    pad_to_multiple_of: int = option(
        LIMITS, "Pad every batch, even of one text, to a multiple of this many tokens, or to the model's "
        "length. Few widths suit runtimes that compile for each one (OpenVINO, TensorRT, torch.compile, XLA). "
        "The model needs attention_mask; inputs of fixed length keep theirs. Of generative models, those that "
        "return logits use it, for whole texts.", integer(1), 1)
    max_batch_output_bytes: int | None = option(
        LIMITS, "Bytes of a batch's outputs. The logits of a vocabulary are megabytes, key-value caches more.",
        integer(1), default_text="4194304 (8388608 through shared memory); 268435456 for texts made from logits")
    max_cache_bytes: int = option(
        LIMITS, "Bytes of the key-value caches of all texts being generated, for models that take "
        "past_key_values. A text takes those of its prompt and max_tokens when it begins; one that finds no room "
        "waits, one that never fits gets 413.", integer(1), 2**30)

    log_level: int = option(
        LOGGING, "Logging level: debug, info, warning, error, critical or a number.", LOG_LEVEL, 20,
        variables=["LOG_LEVEL", "KSERVE_LOGLEVEL"])
    configure_logging: bool = option(LOGGING, "Set up logging.", BOOLEAN, True)
    log_config_file: str | None = option(
        LOGGING, "Logging configuration to use instead: a dictConfig in .json or .yaml, else a fileConfig.",
        PATH)
    log_format: Literal["text", "json"] = option(
        LOGGING, "Log lines as text, or as JSON objects with time, level, logger, message and request_id.",
        one_of("text", "json"), "text")
    access_log_format: str | None = option(
        LOGGING, "Log every request in this format, such as '%(h)s %(t)s \"%(r)s\" %(s)s %(B)s %(L)s'.",
        plain_text("FORMAT"))
    enable_latency_logging: bool = option(LOGGING, "Log how long each stage of a request took.", BOOLEAN, True)
    enable_log_requests: bool = option(LOGGING, "Log the texts of requests.", BOOLEAN, False)
    disable_log_requests: bool = option(
        LOGGING, "Do not log the texts of requests, whatever --enable_log_requests says.", BOOLEAN, False)
    max_log_len: int | None = option(
        LOGGING, "Characters of a text to log.", integer(0), default_text="unlimited")
    enable_server_timing: bool = option(
        LOGGING, "Report in the header Server-Timing how long each stage of a request took.", BOOLEAN, True)
    otlp_endpoint: str | None = option(
        LOGGING, "Collector of OpenTelemetry spans, over OTLP/HTTP, such as http://collector:4318.",
        plain_text("URL", "an http:// or https:// URL", r"https?://[^\s/]+(/\S*)?"))
    otlp_sample_ratio: float = option(
        LOGGING, "Share of requests that are traced if the client's traceparent does not decide.",
        number(0, 1, zero=True), 1.0)
    # fmt: on


def no_effect(name: str, help: str, why: str) -> Option:
    """An option of KServe's runtime that changes nothing here, whatever its value."""
    said = f"has no effect here: {why}"
    return Option(name, "Accepted without effect", f"{help} It {said}.", plain_text(), no_effect=said)


IGNORED: tuple[Option, ...] = (
    no_effect("backend", "KServe: the engine that runs the model.", "the predictor runs the model"),
    no_effect("dtype", "KServe: the data type of the weights.", "the predictor holds the weights"),
    no_effect("max_threads", "KServe: threads of the gRPC server.", "no thread pool serves requests"),
)
"""Accepted so that a manifest written for KServe starts unchanged. The log mentions each that is set, once."""


def all_options() -> tuple[Option, ...]:
    """Every flag there is: the fields of Config, then those without an effect."""
    return (*options_of(Config), *IGNORED)


def parse_config(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[Config, list[str]]:
    """The configuration, and lines to log once logging is set up. Raises ConfigError: one line that names the flag or
    variable, its value and the expected form."""
    given, notes = collect(all_options(), argv, environ)
    draft = Draft(given, {name: entry.value() for name, entry in given.items()}, notes)
    for rule in RULES:
        rule(draft)
    ignored = {declared.name for declared in IGNORED}
    return Config(**{name: value for name, value in draft.values.items() if name not in ignored}), draft.notes
