"""Chat templates in the style of published models, as short as their tags and variables allow."""

TURNS = "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{%- endfor %}"

QWEN3 = (
    "{%- if tools %}<tools>{{ tools | tojson }}</tools> within <tool_call></tool_call>{%- endif %}"
    "{%- for message in messages %}{%- set content = message.content.split('</think>')[-1].lstrip('\n') %}"
    "{%- set thought = message.reasoning_content if message.reasoning_content else '' %}"
    "<|im_start|>{{ message.role }}\n{% if thought %}<think>\n{{ thought }}\n</think>\n\n{% endif %}{{ content }}"
    "<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{%- if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{%- endif %}{%- endif %}"
)
DEEPSEEK_R1 = TURNS + (
    "{% if '</think>' in messages[-1].content %}{% endif %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
MAGISTRAL = "{%- set think = '[THINK]' %}{%- set end = '[/THINK]' %}[TOOL_CALLS][ARGS]" + TURNS
MISTRAL = (
    "{%- for message in messages %}{%- if message.role == 'user' %}[AVAILABLE_TOOLS]{{ tools | tojson }}"
    "[INST]{{ message.content }}[/INST]{%- elif message.tool_calls %}[TOOL_CALLS][{%- for call in message.tool_calls %}"
    "{%- if not call.id is defined or call.id | length != 9 %}"
    "{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}"
    '{{ call.function | tojson }}, "id": "{{ call.id }}"}]{%- endfor %}'
    "{%- elif message.role == 'tool' %}[TOOL_RESULTS]{{ message.tool_call_id }} {{ message.content }}"
    "{%- else %}{{ message.content }}{%- endif %}{%- endfor %}"
)
COMMAND_A = "<|START_THINKING|><|END_THINKING|>" + TURNS
SEED = "{%- set think_end_token = '</seed:think>' %}" + TURNS
GPT_OSS = (
    "{%- if reasoning_effort is not defined %}{%- set reasoning_effort = 'medium' %}{%- endif %}"
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort }}<|end|>{% if tools %}namespace functions{% endif %}"
    "{%- for message in messages %}<|start|>{{ message.role }}"
    "{%- if message.thinking %}<|channel|>analysis<|message|>{{ message.thinking }}<|end|>{% endif %}"
    "<|message|>{{ message.content }}<|end|>{%- endfor %}{%- if add_generation_prompt %}<|start|>assistant{%- endif %}"
)
