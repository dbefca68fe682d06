"""The sandbox of chat templates, with the additions that templates of Hugging Face expect.

Templates are part of a model's files. They cannot access attributes with a leading underscore, change their
inputs, or read the date, so a conversation has the same text on any day.
"""

import json
from typing import Any

from hydraulis.extras import import_extra

# Noncharacters, which Unicode reserves for internal use; they enclose marks in a rendered text.
BEGIN, END = "\ufdd0", "\ufdd1"


def make_environment(jinja: Any, *, marks_generation: bool = True) -> Any:
    """Make the sandbox; `{% generation %}` puts its text between `BEGIN` and `END`.

    Args:
        jinja: Module jinja2.
        marks_generation: Whether it does; otherwise its text is written without them.
    """
    sandbox: Any = import_extra("jinja2.sandbox", "a chat template")
    nodes: Any = import_extra("jinja2.nodes", "a chat template")
    extension: Any = import_extra("jinja2.ext", "a chat template")

    class Generation(extension.Extension):  # type: ignore[misc]
        """The statement around the assistant's text."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Any) -> str:
            return f"{BEGIN}{caller()}{END}" if marks_generation else str(caller())

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, extension.loopcontrols]
    )

    def refuse(message: str) -> None:
        raise jinja.TemplateError(message)

    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = _to_json
    return environment


def _to_json(value: object, ensure_ascii: bool = False, **options: Any) -> str:  # noqa: FBT001
    # Jinja's own filter escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)
