"""The messages of a conversation, from the shapes in which data sets have them.

- A list of messages with `role` and `content`, as chat templates take it, or with `from` and `value`, as
  ShareGPT has it.
- Alpaca's fields: an instruction, an input that may be empty, and an output.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hydraulis.data.tokenization.values import refuse_value, text_value
from hydraulis.errors import InvalidInputError

# ShareGPT's names of the speakers; a name of a role is its own role.
_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "function": "tool",
    "observation": "tool",
}
_KNOWN_ROLES = ("system", "user", "assistant", "tool")

Message = Mapping[str, Any]

# OpenAI's mark of an assistant's message: one with 0 is no target.
WEIGHT = "weight"


def read_messages(field: str, value: object) -> list[Message]:
    """Read a list of messages.

    Args:
        field: Name of the record's field, for messages.
        value: Value of the field.

    Raises:
        InvalidInputError: The value is no list of messages (code `record_malformed`).
    """
    if not isinstance(value, list):
        raise refuse_value(field, value, "a list of messages")
    if not value:
        message = (
            f"field '{field}' has 0 messages, and a conversation has at least 1; correct the record, or "
            "leave it out"
        )
        raise InvalidInputError(message, code="record_malformed")
    return [_message(f"{field}[{number}]", message) for number, message in enumerate(value)]


def join_instruction(fields: Sequence[str], values: Sequence[object]) -> list[Message]:
    """Make a conversation of Alpaca's fields: the instruction with the input as the user's, then the output.

    Args:
        fields: Names of the instruction, of the input unless there is none, and of the output.
        values: Values of the fields; an input may be None.

    Raises:
        InvalidInputError: A value is no text (code `record_malformed`).
    """
    instruction = text_value(fields[0], values[0])
    inputs = [
        text_value(field, value)
        for field, value in zip(fields[1:-1], values[1:-1], strict=True)
        if value not in (None, "")
    ]
    return [
        {"role": "user", "content": "\n\n".join([instruction, *inputs])},
        {"role": "assistant", "content": text_value(fields[-1], values[-1])},
    ]


def find_untrained(messages: Sequence[Message]) -> set[int]:
    """Return the indices of the messages whose weight is 0."""
    return {number for number, message in enumerate(messages) if message.get(WEIGHT) == 0}


def _message(place: str, message: object) -> Message:
    if isinstance(message, dict):
        _check_weight(f"{place}.{WEIGHT}", message.get(WEIGHT))
    if isinstance(message, dict) and isinstance(message.get("role"), str):
        # In a column, every message has the keys of all messages.
        return {key: part for key, part in message.items() if part is not None or key == "content"}
    if not isinstance(message, dict) or not isinstance(message.get("from"), str) or "value" not in message:
        wanted = 'a message such as {"role": "user", "content": "..."} or {"from": "human", "value": "..."}'
        raise refuse_value(place, message, wanted)
    speaker = message["from"]
    role = _ROLES.get(speaker, speaker)
    if role not in _KNOWN_ROLES:
        names = ", ".join([*_KNOWN_ROLES, *_ROLES])
        text = f"field '{place}' is from '{speaker}', and the speakers are {names}; rename the speaker"
        raise InvalidInputError(text, code="record_malformed")
    read = {"role": role, "content": text_value(f"{place}.value", message["value"])}
    return read if message.get(WEIGHT) is None else {**read, WEIGHT: message[WEIGHT]}


def _check_weight(place: str, weight: object) -> None:
    if weight is not None and weight not in (0, 1):
        wanted = "0 for a message outside the loss or 1 for a target"
        raise refuse_value(place, weight, wanted)
