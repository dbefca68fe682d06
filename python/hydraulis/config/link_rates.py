"""How fast the links of a cluster are, in one line of text."""

import math
from dataclasses import dataclass
from typing import Self

from hydraulis.errors import InvalidInputError

# NVLink of an A800, 400 GB/s both ways.
_GPU_GIGABYTES_PER_S = 200.0
_MESSAGE_US = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """Rates of the links, each way.

    Attributes:
        gigabytes_per_s: 1e9 bytes a second between one node and all others.
        gpu_gigabytes_per_s: of one GPU inside its node.
        message_us: microseconds that a message takes beside its bytes.
    """

    gigabytes_per_s: float
    gpu_gigabytes_per_s: float = _GPU_GIGABYTES_PER_S
    message_us: float = _MESSAGE_US

    @classmethod
    def parse(cls, field: str, text: str) -> Self:
        """Read `NODE[,GPU[,MESSAGE]]`, as `plan-bench --link` does.

        Raises:
            InvalidInputError: it is not written so, or a rate is not above 0 (code `config_value`).
        """
        try:
            numbers = [float(part) for part in text.split(",")]
        except ValueError:
            numbers = []
        names = ("gigabytes_per_s", "gpu_gigabytes_per_s", "message_us")
        sound = 1 <= len(numbers) <= len(names) and all(0 <= number < math.inf for number in numbers)
        if not (sound and all(rate > 0 for rate in numbers[:2])):
            message = (
                f"{field} = {text!r} must be 'profile', 'none', or rates as NODE[,GPU[,MESSAGE]]: GB/s and "
                "GB/s above 0, and microseconds; write it so"
            )
            raise InvalidInputError(message, code="config_value")
        return cls(**dict(zip(names, numbers, strict=False)))
