"""The kinds of context parallelism, as profiles, plans and configurations name them."""

from typing import Literal, TypeAlias

ContextKind: TypeAlias = Literal["ulysses", "ring"]
"""How context ranks exchange what attention needs.

`ulysses` exchanges tokens for heads before attention and back after it; `ring` passes keys and values round.
"""
