"""Workers of test_step_sum.py."""

import torch
import torch.distributed as dist

from hydraulis.runtime.agreement.step_digest import MODULUS
from hydraulis.runtime.agreement.step_sum import StepSum, StepTerms, sum_step

HALF = MODULUS // 2 + 1


def sum_cases() -> list[StepSum]:
    """Add up plain terms, terms with a failed rank, and terms with digests that differ by one."""
    rank = dist.get_rank()
    loss, square = torch.tensor((rank + 1) / 10), torch.tensor(float(rank + 1) ** 2)
    votes = [True, rank == 1, False]
    # The first two add up to the modulus plus 2, so the last one has to take 2 away.
    digest = [HALF, HALF, MODULUS - 2][rank]
    return [
        sum_step(StepTerms(loss, square, digest=[0, digest], votes=votes)),
        sum_step(StepTerms(loss, square, has_failed=rank == 2)),
        sum_step(StepTerms(loss, square, digest=[0, digest + (rank == 2)])),
    ]
