"""The section `data`: where sequences come from."""

import dataclasses
from typing import Literal

from hydraulis.config.check import at_least


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Where the sequences come from, and how many of them make a global batch.

    Attributes:
        source: `stdlib` is the functions and methods of the interpreter's standard library.
        max_tokens: the longest sequence; longer documents are cut, and the cuts are counted.
        tokens_per_batch: a global batch takes whole documents until it holds this many tokens.
    """

    source: Literal["stdlib"] = "stdlib"
    max_tokens: int = 8192
    tokens_per_batch: int

    def __post_init__(self) -> None:
        # The last token of a document predicts nothing, so a single one would train nothing.
        at_least("data.max_tokens", self.max_tokens, 2)
        at_least("data.tokens_per_batch", self.tokens_per_batch, 1)
