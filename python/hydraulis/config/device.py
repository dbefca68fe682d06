"""The kinds of devices that ranks compute on, as configurations name them."""

from typing import Literal, TypeAlias

DeviceKind: TypeAlias = Literal["auto", "cpu", "cuda"]
"""What every rank computes on.

`cuda` takes a device of its own for each rank of a node; `auto` is `cuda` where there is any, else `cpu`.
"""
