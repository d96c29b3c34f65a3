"""Chat templates in the style of well-known models, and chats for them. Written for these tests, not copied."""
# ruff: noqa: E501 - a line break would be a part of the template

from __future__ import annotations

from typing import Any

LLAMA_2 = """{%- if messages[0].role == 'system' -%}
    {%- set system = '<<SYS>>\\n' ~ messages[0].content ~ '\\n<</SYS>>\\n\\n' -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set system = '' -%}{%- set rest = messages -%}{%- endif -%}
{%- for message in rest -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
    {%- endif -%}
    {%- if message.role == 'user' -%}
        {{ bos_token + '[INST] ' + (system if loop.first else '') + message.content.strip() + ' [/INST]' }}
    {%- else -%}{{ ' ' + message.content | trim + ' ' + eos_token }}{%- endif -%}
{%- endfor -%}"""

MISTRAL = """{%- set loop_messages = messages if messages[0]["role"] != "system" else messages[1:] %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}{%- set ns.index = 0 %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}{{- tool.function | tojson }}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}
            {{- "][/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + message["content"] + "[/INST]" }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for call in message.tool_calls %}{{- call.function | tojson }}{{- ", " if not loop.last else "]" + eos_token }}{%- endfor %}
    {%- elif message["role"] == "assistant" %}{{- " " + message["content"] + eos_token }}
    {%- elif message["role"] == "tool" %}
        {%- set ns.index = ns.index + 1 %}{{- '[TOOL_RESULTS] ' + ns.index|string + message.content + '[/TOOL_RESULTS]' }}
    {%- else %}{{- raise_exception("Only user and assistant roles are supported!") }}{%- endif %}
{%- endfor %}"""

HERMES = """{%- macro json_type(spec) %}
    {%- if spec.type == 'array' %}{{- 'list[' + json_type(spec['items']) + ']' }}
    {%- elif spec.type is string %}{{- {'string': 'str', 'number': 'float', 'object': 'dict'}.get(spec.type, spec.type) }}
    {%- else %}{{- 'Any' }}{%- endif %}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\\n<tools>' }}
    {%- for tool in tools %}
        {%- set function = tool.function %}
        {{- '{"name": "' ~ function.name ~ '", "args": "' }}
        {%- for name, spec in function.parameters.properties.items() %}
            {{- name ~ ': ' ~ json_type(spec) }}{%- if not loop.last %}{{- ', ' }}{%- endif %}
        {%- endfor %}
        {{- '", "schema": ' ~ (function | tojson) ~ '}' }}
    {%- endfor %}
    {{- '</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.tool_calls is defined %}
        {{- '<|im_start|>assistant' }}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' ~ call.function.arguments|tojson ~ '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>tool\\n' }}{%- endif %}
        {{- '<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>' }}{%- endif %}
    {%- else %}{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

QWEN = """{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and not message.content.startswith('<tool_response>') %}
        {%- set ns.multi_step = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- set reasoning = '' %}
    {%- if message.reasoning_content is string %}{%- set reasoning = message.reasoning_content %}
    {%- elif '</think>' in content %}
        {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' and loop.index0 > ns.last and reasoning %}{{- '<think>' + reasoning + '</think>' }}{%- endif %}
    {{- content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{% generation %}{{ '<|assistant|>\\n'  + message['content'] + eos_token }}{% endgeneration %}

{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

COMMAND_R = """{{ bos_token }}{% set ns = namespace(turns=[]) %}
{%- for message in messages -%}{%- if message.role == 'system' -%}{%- continue -%}{%- endif -%}
<|START|>{{ message.role | upper }}: {{ message.content }}<|END|>
{%- endfor -%}
{%- if documents %}<results>
{% for document in documents %}
Document: {{ loop.index0 }}
{% for key, value in document.items() %}{{ key }}: {{ value }}
{% endfor %}{% endfor %}</results>{% endif %}
{%- if add_generation_prompt -%}<|CHATBOT|>{%- endif -%}"""

PARTS = """{% for message in messages %}<|{{ message['role'] }}|>
{% if message['content'] is string %}{{ message['content'] }}
{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}
{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""

ONLY_PARTS = """{% for message in messages %}{{ message.role | capitalize }}:
{%- for line in message.content %}{% if line.type == 'text' %} {{ line.text }}{% endif %}{% endfor %}<end>
{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"""

LOOPS = """{%- for message in messages | sort(attribute='role') %}
{%- if loop.index > 3 %}{% break %}{% endif %}
{{- loop.cycle('a', 'b') ~ message.role|title ~ dict(x=message.content)['x'] ~ (message.content | length) }}
{%- for word in message.content.split() if word | length > 2 recursive %}<{{ word }}>{% else %}-{% endfor %}
{%- endfor %}{{ range(3) | list | tojson(separators=(',', ':')) }}{{ "%02d" | format(7) }}
{{- strftime_now("%Y") }}{% if tools is not none %}{{ tools | tojson(indent=4) }}{% endif %}"""

TEMPLATES = {
    "llama-2": LLAMA_2,
    "mistral": MISTRAL,
    "hermes": HERMES,
    "qwen": QWEN,
    "zephyr": ZEPHYR,
    "command-r": COMMAND_R,
    "parts": PARTS,
    "loops": LOOPS,
}

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather <now> & 'here' in \"é\"",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}},
        },
    },
}
USER = {"role": "user", "content": "  Is é < 日本 & 'x'? 👩\u200d👧 \n"}
ASSISTANT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "n": 1.0}}}],
}
RESULT = {"role": "tool", "name": "weather", "content": '{"sun": true}'}

CHATS: dict[str, dict[str, Any]] = {
    "one": {"messages": [USER]},
    "no-prompt": {"messages": [USER, ASSISTANT], "add_generation_prompt": False},
    "turns": {"messages": [SYSTEM, USER, ASSISTANT, USER]},
    "wrong-turns": {"messages": [USER, USER]},
    "tools": {"messages": [USER, CALL, RESULT, ASSISTANT, USER], "tools": [WEATHER, WEATHER]},
    "tools-none-used": {"messages": [SYSTEM, USER], "tools": [WEATHER]},
    "results": {"messages": [USER, CALL, RESULT, RESULT]},
    "documents": {"messages": [USER], "documents": [{"title": "T", "text": "x"}, {"title": "U", "text": "y"}]},
    "thinking": {"messages": [USER, {**ASSISTANT, "reasoning": "because"}], "enable_thinking": False},
    "unknown-role": {"messages": [{"role": "judge", "content": "guilty"}]},
    "no-content": {"messages": [{"role": "user"}]},
}
