"""The kinds of activation checkpointing, as profiles and configurations name them."""

from typing import Literal, TypeAlias

CheckpointingKind: TypeAlias = Literal["none", "selective", "full"]
"""What a decoder layer computes again for its backward pass instead of keeping it.

`none` keeps everything; `selective` keeps attention and the results of matrix products, and computes the
rest, which is cheap, again; `full` keeps the layer's input alone.
"""
