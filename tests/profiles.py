"""Cost profiles made up for tests: schemes with the caps and coefficients that a test needs."""

import json
from collections.abc import Mapping

from hydraulis import CostProfile, Scheme

MULTIPLE = 4


def made_up_profile(
    caps: Mapping[str, int], context: str = "ulysses", device: str = "none", slowdown: float = 1.0
) -> CostProfile:
    """Make a profile in which each scheme admits so many tokens; work is shared evenly over its ranks.

    Args:
        caps: Token caps by the scheme's text.
        context: Kind of context parallelism of all schemes that have any.
        device: Name of the device.
        slowdown: Factor of all times.
    """
    bytes_per_token = 1000.0
    memory = 10_000_000_000

    def scheme(text: str, cap: int) -> dict[str, object]:
        ranks = Scheme(text).ranks
        return {
            "scheme": text,
            "quadratic_ms_per_token2": slowdown * 1e-4 / ranks,
            "linear_ms_per_token": slowdown * 0.05 / ranks,
            "fixed_ms": slowdown * 2.0 / ranks,
            "forward_share": 1 / 3,
            "resident_bytes": memory - round(cap * bytes_per_token),
            "activation_bytes_per_token": bytes_per_token,
            **({"context": context} if "cp" in text else {}),
            **({"host_bytes_per_token": 0.0} if "offload" in text else {}),
            **({"stage_layers": Scheme(text).split} if Scheme(text).split else {}),
        }

    document = {
        "format": "hydraulis.cost-profile/2",
        "name": "made-up",
        "source": "made up for a test",
        "hardware": {"device": device, "gpus_per_node": 8, "memory_bytes": memory},
        "memory": {"reserved_bytes": 0, "optimizer_bytes": 0, "token_multiple": MULTIPLE},
        "schemes": [scheme(text, cap) for text, cap in caps.items()],
    }
    return CostProfile.from_json(json.dumps(document))
