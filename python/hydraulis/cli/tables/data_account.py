"""What became of the documents of a data set, in words."""

from collections.abc import Mapping

from hydraulis.text.numbers import format_count

# By their names in `Dataset.account`: what is counted, and what became of it.
_WORDS = {
    "held_out": ("document", "held out"),
    "too_long": ("document", "too long"),
    "lost_tokens": ("token", "lost"),
    "without_target": ("sequence", "without a target"),
    "documents_without_target": ("document", "without a target"),
    "broken_records": ("record", "broken"),
    "documents_without_token": ("document", "without a token"),
}


def data_account(facts: Mapping[str, int]) -> list[str]:
    """Name all that is not trained as it stands in the files, with its number, where there is any."""
    return [
        f"{format_count(facts[key], one)} {what}" for key, (one, what) in _WORDS.items() if facts.get(key)
    ]
