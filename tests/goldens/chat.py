"""Conversations as transformers renders them, by templates in the forms that published models use."""

import argparse
import json
from pathlib import Path

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
}


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
