"""The balanced planner as a packing scheduler of Megatron-core (main and dev branches, 2026).

    from megatron.core.datasets import data_schedule as schedule
    kind = schedule.PackingSchedulerEnum.DP_BALANCED
    schedule.scheduler_map[kind] = balanced_scheduler(schedule.DpBalancedScheduler, cost=(24_576, 1))

and `--sequence-packing-scheduler dp_balanced`.
"""

from collections.abc import Sequence
from typing import Any

from hydraulis.batching.adapters.schedules import plan_schedule


def balanced_scheduler(base: type[Any], cost: object) -> type[Any]:
    """Make a scheduler whose packs take equal time in each micro-batch.

    Args:
        base: Megatron's `DpBalancedScheduler`.
        cost: Time of a sequence, as `SequenceCost.of` takes it.
    """

    class BalancedScheduler(base):  # type: ignore[misc]
        """Packs sequences by their time; every rank of a context-parallel group has the same ones."""

        def get_groups_and_subsamples(
            self, sample_id_seqlens: Sequence[tuple[int, int]]
        ) -> list[list[list[int]]]:
            """Return for each micro-batch the samples of each rank of data and context parallelism."""
            plan = plan_schedule(
                [length for _, length in sample_id_seqlens],
                ranks=self.dp_size,
                cap_tokens=self.max_seqlen_per_dp_cp_rank * self.cp_size,
                cost=cost,
                multiple_of=self.microbatch_group_size_per_vp_stage or 1,
                # Older branches have no limit.
                most_samples=getattr(self, "max_num_seqs", None),
            )
            ids = [[[sample_id_seqlens[item][0] for item in part] for part in rank] for rank in plan]
            slots = zip(*ids, strict=True)
            return [[part for part in slot for _ in range(self.cp_size)] for slot in slots]

    return BalancedScheduler
