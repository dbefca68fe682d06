"""Functions that test_agreement.py runs on ranks."""

from collections.abc import Mapping

import torch.distributed as dist

from hydraulis.errors import HydraulisError
from hydraulis.runtime.agreement.comparison import check_same


def check_and_refuse() -> list[tuple[str, str]]:
    rank = dist.get_rank()
    size = {} if rank == 2 else {"the bytes of x": 5}
    return [
        _checked({"train.steps": 3, "train.betas": (0.9, None)}),
        _checked({"train.steps": 3, "train.seed": 7 if rank == 1 else 0, "train.other": rank}),
        _checked({"train.steps": 3} | size),
    ]


def _checked(facts: Mapping[str, object]) -> tuple[str, str]:
    try:
        check_same(facts, "set it alike")
    except HydraulisError as error:
        return error.code if error.is_everywhere else "only on this rank", str(error)
    return "", ""
