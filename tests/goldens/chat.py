"""Conversations as transformers renders them, by templates in the forms that published models use."""

import argparse
import json
from datetime import datetime
from pathlib import Path
from unittest import mock

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from common import REPOSITORY, versions

TEMPLATES = {
    # ChatML, as SmolLM2 and Qwen2.5 have it: a system message of its own where there is none.
    "chatml": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful assistant.<|im_end|>
' }}{% endif %}{{ '<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}""",
    # Llama 3: the first token written by the template, text trimmed.
    "llama3": """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}""",
    # Mistral: roles that must alternate, blocks on lines of their own, a namespace.
    "mistral": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("Conversation roles must alternate user/assistant") }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"].strip() + eos_token }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
""",
    # Methods of Python's strings and lists, slices backwards, blocks that trimming changes, as Qwen3 and Phi-3 have them.
    "python": """{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and message.content.startswith('<tool') %}
        {%- set ns.last = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{% for message in messages %}
    {% set text = message.content.split('</think>')[-1].lstrip('\\n') %}
    {% if message.role is string and text.endswith('?') %}
<|{{ message.role.upper() }}|>
{{ text.replace('?', '!').rstrip() }}{{ ' (last)' if loop.index0 == ns.last }}
    {% else %}
<|{{ message.role.title() }}|>{{ text | tojson }}{{ {"a": [1, none, true], "b": "<'>"} | tojson }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt is defined and add_generation_prompt and not tools %}
<|end|>{% endif %}
""",
    # SmolLM3: a date that is not asked for, and marks of what a model is trained on, tight and loose.
    "smollm3": """{%- set today = strftime_now("%d %B %Y") -%}
{{- "<|im_start|>system\n## Metadata\n\nToday Date: " + today + "\n" -}}
{%- if messages[0].role == "system" -%}
{{- messages[0].content.rstrip() + "\n" -}}
{%- endif -%}
{{- "<|im_end|>\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>" + message.role + "\n"  + content + "<|im_end|>\n" }}
    {%- elif message.role == "assistant" -%}
        {%- generation -%}
        {%- set kept = content.lstrip("\n") -%}
        {{ "<|im_start|>assistant\n" + kept + "<|im_end|>\n" }}
        {%- endgeneration -%}
        {% generation %}
{{ kept is defined }}
        {% endgeneration %}
        {%+ generation +%} {{ "{% generation %}" }}{% endgeneration %}

    {%- endif -%}
{%- endfor -%}
{# {% generation %} #}{% raw %}{% generation %}{% endraw %}
{%- if add_generation_prompt -%}
    {{ "<|im_start|>assistant\n" }}
{%- endif -%}
""",
    # Llama 3.1: the date where it is told, and another where it is not.
    "llama3.1": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
""",
    # Newlines of Windows and of old Macs, in text, tags and texts inside tags; the last is dropped.
    "newlines": "{%- for m in messages %}\r\n{{ m.role }}:\r{{ m.content }}\r\n\r\n{{ 'a\r\nb\\r' }}\r\n{%- endfor %}\r\nanswer:\r\n",
    # What follows one newline that is dropped.
    "last newlines": "{{ messages[0].content }}\n\n",
    # Mistral's older form: tokens and content in one sum.
    "sums": "{% for m in messages %}{{ bos_token + '[INST] ' + m['content'] + ' [/INST]' + eos_token }}{% endfor %}",
    # Maps keep their order, `tojson` takes what json.dumps does.
    "maps": """{% set m = {'b': 1, 'a': [2, {'é': none}], 'c': {}, 'd': []} %}{{ m | tojson }}{% for k, v in m.items() %} {{ k }}{% endfor %}
{{ m | tojson(indent=2) }}{{ m | tojson(ensure_ascii=True, sort_keys=True) }}{{ m | tojson(separators=(',', ':')) }}{{ m | tojson(indent="->") }}
{{ messages | tojson }}{{ '😀' | tojson(ensure_ascii=true) }}{{ dict(z=1, y=2) | tojson }}{{ m }}""",
    # Python's formats, methods and filters.
    "values": """{{ '%s items' % 3 }} {{ '%s=%05.1f' % ('a', 2) }} {{ '%(a)s-%(b)s' % {'b': 1, 'a': 2} }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7.5 % 2 }}
{{ 'abcb'.index('b') }} {{ 'abcb'.rindex('b') }} {{ 'abcb'.partition('b') }} {{ 'abcb'.rpartition('b') }} {{ 'a'.partition('b') }}
{{ [1, 2].copy() }} {{ {'a': 1}.copy() }} {{ [1, 2].index(2) }} {{ 'abc'.removeprefix('a').removesuffix('c') }}
{{ 'Two words, or-three' | wordcount }} {{ 'a sentence with words' | truncate(10) }} {{ 'a sentence with words' | truncate(10, True, '') }}
{{ 'short' | truncate(length=4, leeway=0) }} {{ '<b>bold</b>  &amp; not' | striptags }} {{ 'ab' * 3 }} {{ [1] * 2 }} {{ 2 * 3 }}
{{ ([1] + [2])[1:] }} {{ messages[::-1] | length }} {{ 'in 2024: {} of {:>4}'.format(1, 'x') }} {{ 'b' ~ 1 ~ none ~ true }}
{{ ['a', 'b'] | map('upper') | join('-') }} {{ messages | map(attribute='role') | list }} {{ 'a\nb' | indent(2, true) }} {{ 'aXa' | replace('a', 'bb') }}
{% macro twice(text, n=2) %}{{ text * n }}{% endmacro %}{{ twice('x') }}{{ twice('y', n=3) }}{% macro around() %}<{{ caller() }}>{% endmacro %}{% call around() %}z{% endcall %}
{% filter upper %}shout{% endfilter %}{% set block %}in a block{% endset %}{{ block | title }}{% set ns = namespace(a=1) %}{% set ns.b = ns.a + 1 %}{{ ns.b }}
{% for part in [1, [2, [3]]] recursive %}{{ loop(part) if part is not number else part }}{% endfor %}{{ (1, 2) }}{{ 'yes' if messages else 'no' }}""",
}

# The time that templates are told.
NOW = datetime(2026, 3, 9, 12, 30)


def message(role, content):
    return {"role": role, "content": content}


CONVERSATIONS = [
    [message("user", "  What is a cache?\n")],
    [message("system", "Be short."), message("user", "Ça va? <b>&amp;"), message("assistant", "<think>\nYes.\n</think>\n\nOui. "),
     message("user", "Why?")],
    [message("user", "One."), message("user", "<tool> \"Two\".")],
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    default = REPOSITORY / "crates" / "briquette-models" / "tests" / "fixtures" / "chat.json"
    parser.add_argument("--out", type=Path, default=default, help="file to write")
    out = parser.parse_args().out
    cases = []
    for name, template in TEMPLATES.items():
        for messages in CONVERSATIONS:
            for generation_prompt in [False, True]:
                try:
                    with mock.patch("transformers.utils.chat_template_utils.datetime", wraps=datetime) as clock:
                        clock.now.return_value = NOW
                        rendered, _ = render_jinja_template(
                            [messages], chat_template=template, add_generation_prompt=generation_prompt, bos_token="<s>",
                            eos_token="</s>",
                        )
                    text = rendered[0]
                except TemplateError as error:
                    text, refused = None, str(error)
                cases.append(dict(template=name, messages=messages, generation_prompt=generation_prompt, text=text))
                if text is None:
                    cases[-1]["refused"] = refused
    written = dict(versions=versions("transformers"), templates=TEMPLATES, cases=cases)
    out.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
