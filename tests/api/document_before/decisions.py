"""The differences between the frozen documents and the generated one, each a decision.

A pattern matches whole statements of facts.py, with ``+`` for new ones and ``-`` for those that are gone. The name of
the model is {model} in all.
"""

from __future__ import annotations

RERANKS = "POST (/openai/v1|/v1|/infinity|)/rerank"
EMBEDS = "POST (/openai/v1|/v1|/infinity|)/embeddings"
VLLM = "POST (/v1)?/(score|classify|pooling)|POST /generative_scoring"
TEXTS = "POST (/openai)?/v1/(completions|chat/completions|responses)"
PATH = r"/v2/models/\{model\}(/versions/\{version\})?"
RUNS = rf"{TEXTS}|POST {PATH}/(generate|generate_stream|infer)|POST /v1/models/.*predict"
GENERATION = (
    "temperature|stop_token_ids|n|num_return_sequences|ignore_eos|stream|logprobs|echo|max_tokens|parallel_tool_calls"
)
NEW_TASKS = {"zero_shot_token_classification"}
"""The tasks without a frozen document."""
DECISIONS: dict[str, str] = {
    r"\+ POST /v1/messages(/count_tokens)?[:,] .*|\+ tag Anthropic": "Anthropic's Messages are new",
    r"\+ POST (/openai)?/v1/moderations.*": "the route is new",
    r"\+ GET /v1/models/\{model\}/info, 200\.protocols\.anthropic.*": "Anthropic's Messages are new",
    r"\+ POST /(analyze|anonymize).*|\+ tag Presidio": "Presidio's routes are new",
    r"\+ POST .*(predict|infer).*\.mask: .*|\+ POST .*predict.*predictions\[\](: |\.(masked_text|entities)).*": "the "
    "parameter mask is new",
    r"\+ POST /v1/models/.*predict, body: example .*\"mask\".*": "the parameter mask is new",
    r"\+ .*zero_shot_token_classification.*|- title: .*": "the task is new",
    r"\+ POST .*(predict|infer), body.*\.(labels|threshold|flat_ner|max_width)(\[\])?: .*": "the task is new",
    r"\+ POST .*predict, 200.*predictions\[\]\[\]\.text: required": "the task is new",
    r"\+ POST .*predict, body: example .*and works for Siemens.*": "the task is new",
    r"\+ GET /v1/models/\{model\}/info, 200\.default_labels.*": "the task is new",
    # Tasks
    rf". POST {PATH}/infer, body: example .*": "V2's examples are those of V1, as tensors: a task has one list",
    r"\+ .*\.max_question_len: default 64": "the default was missing",
    r"\+ .*\.return_documents: default false": "the default was missing",
    r"- POST .*predict, 200.*predictions\[\]\[\]\.(entity|index): .*": "groups of token classification have neither; "
    "they are closed",
    r"\+ GET /info, 200\.models\[\]\.purpose: .*": "/info has the task in a few words",
    r"\+ GET /v1/models/\{model\}/info, 200\.generation\.full_text: .*": "the answer had the field already",
    # V1 and V2
    r". POST /v1/models/.*predict, body application/cloudevents\+json\.(data|data_base64): .*": "one of both is "
    "required, and null counts as absent",
    rf"\+ POST {PATH}/infer, .*: value \"(embeddings|token_count)\"": "NIM's names of outputs were missing",
    rf"- GET {PATH}/config, 200\.output\[\]\.optional: .*": "a closed object needs no field that it refuses",
    r"[+-] GET /v1/models/\{model\}, 503\.error: (required|optional)": "a declared model that is not loaded has an "
    "error in the service's form, without name and ready",
    r"\+ POST /v2/repository/.*, 200: header X-Request-Id": "these answers have the header, too",
    r"\+ POST /v2/repository/.*, body\.(ready|parameters): value null": "null counts as absent in declared bodies",
    r"\+ POST /v2/repository/.*, body\.(ready|parameters\.unload_dependents): default false": "the default was missing",
    r"- POST /(, .*|: teiRoot, .*)": "without a predictor the document leaves out each route that runs a model; POST / "
    "was an exception, since it shares its path with GET",
    # Bodies of declared types
    rf". ({RERANKS}|{EMBEDS}), body\.model: (value .*|type string)": "the model is any string or null in declared "
    "bodies; the query parameter lists the names",
    r"\+ POST .*, body\..*: default .*": "declared fields show their defaults",
    rf"- {RERANKS}, body\.raw_scores: default false": "the default is the task's",
    rf". {RERANKS}, body\.rank_fields(\[\])?: .*": "an empty list was a 400 already; the items are strings",
    r"\+ POST .*, body\.documents\[\]\.(content|text).*": "the forms of a document's text are shown",
    r". POST (/v1)?/score, body\.(queries|documents|items|text_1|text_2|data_1|data_2).*": "a side has the forms of "
    "documents, and null counts as absent",
    rf". ({VLLM}), body\.input(\[\].*)?: .*": "the items are shown; an empty list was a 400",
    r"\+ POST /v1/multi-vector, body\.task: .*": "Jina's name of input_type, which Weaviate sends there, was refused",
    rf". (POST /v1/multi-vector|{EMBEDS}), body\.input(\[\].*)?: .*": "the items are shown; an empty list was a 400",
    r"\+ POST /v2/embed, body\.inputs\[\].*": "the items are shown",
    r". POST /v[12]/embed, body\.embedding_types(\[\])?: .*": "the types are shown for a single one, too; an empty "
    "list was a 400",
    r"\+ POST /(invocations|vertex|), body\.(instances\[\]\.)?inputs: value null": "null counts as absent",
    r"\+ POST /vertex, body\.instances\[\]\.model: .*": "the field is a string, without effect",
    r". POST /tokenize, body(\..*)?: .*": "the forms of vLLM's tokenize are types, each with its required field; a "
    "chat has all fields of its API",
    r"\+ POST /v1/(chat/)?completions/derender.*": "the routes are new",
    r"\+ POST /v1/(messages|responses)/render.*": "the routes are new",
    # Generation
    rf". ({RUNS}), body.*\.({GENERATION})(\[\])?: .*": "a temperature of 0 is in the range; defaults that depend on "
    "flags or on other fields are left out; ids are any number",
    rf". ({TEXTS}), body\.model: (value .*|type string)": "as for embeddings",
    r". POST .*/chat/completions(/render)?, body\.(messages|tools)\[\].*cache_control.*": "it is any value",
    r". POST .*/chat/completions(/render)?, body\.messages\[\].*": "parts may lack a type, calls may lack "
    "arguments, and an old function_call may be null",
    r". POST .*/chat/completions, body\.response_format\.json_schema\.description: .*": "any value, without effect",
    r". POST (/openai)?/v1/.*, body\.tools\[\](\.function)?\.name: type string.*": "an empty name was a 400",
    r". POST (/openai)?/v1/(chat/)?completions, 200.*\.(delta|message)\..*": "a chunk of a call has an index and "
    "the parts that are new; a whole call has no index",
    r". POST (/openai)?/v1/(chat/)?completions, 200.*choices: type array.*": "an answer's list has no limits",
    r". POST (/openai)?/v1/responses, 200\.created: .*": "the field is created_at",
    r"\+ POST (/openai)?/v1/responses, .*": "items, events and further fields are shown",
    r". POST /v1/(chat/)?completions/render, .*": "fields of the request that becomes the answer are "
    "shown; lists have no limits",
    r"\+ POST /generative_scoring, body\..*": "the items are shown",
    rf". POST {PATH}/(generate|generate_stream), 200.*: type array.*": "an answer's list has no limits",
    rf". ({RUNS}), body.*\.(bad_words|model_name|model_version|output_format)(\[\])?: .*": "their values are shown as "
    "they are accepted",
    rf"\+ POST {PATH}/(generate|generate_stream|infer), body\..*: (optional|value .*)": "fields of Triton's backends "
    "without effect are shown",
    r"- POST (/openai)?/v1/.*, body\.tools\[\](\.function)?\.description: .*": "any value was accepted where tools are "
    "rendered only",
    r"\+ POST .*\b(src_lang|tgt_lang): .*": "models that translate between many languages have them",
    # Reasoning
    r"\+ POST .*/chat/completions, .*usage\.completion_tokens_details.*": "the usage has the reasoning's tokens",
    r"\+ POST .*/chat/completions, body\.include_reasoning: .*": "vLLM's field is accepted",
    r". POST (.*/chat/completions|/tokenize), body\.reasoning_effort: .*": "OpenAI's and vLLM's values are "
    "variables of the template",
    r"- POST .*/v1/responses, body\.reasoning: value .*": "OpenAI's members are accepted",
    # Answers of declared types
    r"\+ POST .*, 200\.(data|results|rankings)\[\].*": "the fields of items are shown",
    r"\+ POST .*, 200\.usage.*": "the numbers of tokens are shown",
    r"\+ POST /v[12]/embed, 200\.embeddings.*": "the vectors are shown",
    r"[+-] POST (/v[12]/embed, 200\.texts|/decode, 200): type array.*": "an answer's list has no limits",
    rf"- {RERANKS}, 200\.results\[\]\.document\.text: required": "a document may have content or rank_fields instead",
    r"[+-] POST /tokenize, 200\[\]\[\]\.(start|stop): type integer.*": "an answer's number has no limits",
}
