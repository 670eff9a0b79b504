"""A small chat template with tools, in the style of Hermes and Qwen; the bundled model's has none."""

TOOL_TEMPLATE = (
    "{%- if tools %}<system>{%- for tool in tools %}{{ tool | tojson }}\n{%- endfor %}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}<user><tool_response>{{ message.content }}</tool_response>"
    "{%- else %}<{{ message.role }}>{{ message.content }}"
    "{%- for call in message.tool_calls %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{%- endfor %}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}<assistant>{%- endif %}"
)
