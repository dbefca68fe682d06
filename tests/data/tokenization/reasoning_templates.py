"""Chat templates with the features of the templates of reasoning models."""

# Splits the content at the end of the reasoning, writes the reasoning after the last user's message only, and
# adds empty reasoning to the last message.
DROPS_EARLIER_REASONING = """\
{%- set place = namespace(user=-1) %}
{%- for message in messages[::-1] %}
    {%- if place.user < 0 and message.role == 'user' %}
        {%- set place.user = messages | length - loop.index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set parts = (message.content or '').split('</think>') %}
        {%- set thought = parts[0].split('<think>')[-1].strip() if parts | length > 1 else '' %}
        {{- '[assistant]\\n' }}
        {%- if loop.index0 > place.user and (thought or loop.last) %}
            {{- '<think>\\n' + thought + '\\n</think>\\n' }}
        {%- endif %}
        {{- parts[-1].strip() }}
        {%- for call in message.tool_calls or [] %}{{ '<call>' + call.function.name + '</call>' }}{% endfor %}
        {{- '[end]\\n' }}
    {%- else %}
        {{- '[' + message.role + ']\\n' + message.content + '[end]\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[assistant]\\n' }}{% endif %}"""

# Its tags begin alike, and the end token is after the last message only.
ENDS_ONCE = """\
{%- for message in messages %}
{{- '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""

# Writes tool calls of messages whose content is null only, and drops all reasoning; the prompt begins one.
CALLS_WITHOUT_CONTENT = """\
{%- for message in messages %}
    {%- if message.role != 'assistant' %}{{ '<' + message.role + '>' + message.content }}
    {%- elif message.content is none %}
        {{- '<assistant>' }}{% for one in message.tool_calls %}{{ '<call>' + one.function.name }}{% endfor %}
    {%- else %}{{ '<assistant>' + message.content.split('</think>')[-1] + '<end>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant><think>\\n' }}{% endif %}"""
