"""The balanced planner behind slime's `build_dp_schedule`.

    import slime.utils.dp_schedule
    slime.utils.dp_schedule.build_dp_schedule = make_dp_schedule(cost=(24_576, 1))

before slime's own modules import the function. It schedules dynamic batches (`--use-dynamic-batch-size`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydraulis.batching.adapters.schedules import plan_schedule
from hydraulis.errors import InvalidInputError

Schedule = tuple[list[list[int]], list[list[list[int]]], list[int], list[int]]


def make_dp_schedule(cost: object) -> Callable[..., Schedule]:
    """Make a function with the arguments and results of slime's `build_dp_schedule`.

    Args:
        cost: Time of a sample, as `SequenceCost.of` takes it.
    """

    def build_dp_schedule(
        args: Any,
        train_parallel_config: Mapping[str, int],
        total_lengths: Sequence[int],
        *,
        global_batch_size: int,
        rollout_indices: Sequence[int],
        **others: Any,
    ) -> Schedule:
        _check(args, others)
        ranks, vpp = train_parallel_config["dp_size"], train_parallel_config["vpp_size"]
        multiple = train_parallel_config["microbatch_group_size_per_vp_stage"] if vpp > 1 else 1
        margin = getattr(args, "packing_safety_margin", 1.0)
        cap = max(1, int(args.max_tokens_per_gpu * train_parallel_config["cp_size"] * margin))
        rollouts: dict[int, list[int]] = {}
        for sample, rollout in enumerate(rollout_indices):
            rollouts.setdefault(rollout, []).append(sample)
        members = list(rollouts.values())
        partitions: list[list[int]] = [[] for _ in range(ranks)]
        micro_batches: list[list[list[int]]] = [[] for _ in range(ranks)]
        counts, sizes = [], []
        for step in range(len(members) // global_batch_size):
            chosen = members[step * global_batch_size : (step + 1) * global_batch_size]
            samples = [sample for one in chosen for sample in one]
            lengths = [total_lengths[sample] for sample in samples]
            plan = plan_schedule(lengths, ranks=ranks, cap_tokens=cap, cost=cost, multiple_of=multiple)
            counts.append(len(plan[0]))
            sizes.append(global_batch_size)
            for rank, own in enumerate(plan):
                for part in own:
                    start = len(partitions[rank])
                    partitions[rank] += [samples[item] for item in part]
                    micro_batches[rank].append(list(range(start, start + len(part))))
        return partitions, micro_batches, counts, sizes

    return build_dp_schedule


def _check(args: Any, others: Mapping[str, Any]) -> None:
    """Refuse what only slime's own schedule does."""
    unsupported = {
        "use_dynamic_batch_size = False": not args.use_dynamic_batch_size,
        "global_batch_tokens": getattr(args, "global_batch_tokens", None) is not None,
        "multimodal_aware_packing": getattr(args, "multimodal_aware_packing", "off") != "off",
    }
    unsupported |= {name: name != "sample_is_multimodal" for name in others}
    asked = [name for name, is_asked in unsupported.items() if is_asked]
    if asked:
        message = f"{asked[0]} is scheduled by slime's own build_dp_schedule alone; use that, or leave it out"
        raise InvalidInputError(message, code="argument_invalid")
