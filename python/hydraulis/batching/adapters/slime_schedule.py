"""The balanced planner behind slime's `build_dp_schedule`.

    import slime.utils.dp_schedule
    slime.utils.dp_schedule.build_dp_schedule = make_dp_schedule(cost=(24_576, 1))

before slime's own modules import the function. It schedules dynamic batches (`--use-dynamic-batch-size`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hydraulis.batching.adapters.schedules import plan_schedule, whole_steps
from hydraulis.errors import InvalidInputError

Schedule = tuple[list[list[int]], list[list[list[int]]], list[int], list[int]]

# Arguments of slime and the only value of each that this schedule supports.
_PLAIN = {"use_dynamic_batch_size": True, "global_batch_tokens": None, "multimodal_aware_packing": "off"}


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
        config, margin = train_parallel_config, getattr(args, "packing_safety_margin", 1.0)
        multiple = config["microbatch_group_size_per_vp_stage"] if config["vpp_size"] > 1 else 1
        cap = max(1, int(args.max_tokens_per_gpu * config["cp_size"] * margin))
        partitions: list[list[int]] = [[] for _ in range(config["dp_size"])]
        micro_batches: list[list[list[int]]] = [[] for _ in partitions]
        counts = []
        settings: Any = {"ranks": len(partitions), "cap_tokens": cap, "cost": cost, "multiple_of": multiple}
        for samples in whole_steps(rollout_indices, global_batch_size):
            plan = plan_schedule([total_lengths[sample] for sample in samples], **settings)
            counts.append(len(plan[0]))
            for own, places, parts in zip(partitions, micro_batches, plan, strict=True):
                for part in parts:
                    places.append(list(range(len(own), len(own) + len(part))))
                    own += [samples[item] for item in part]
        return partitions, micro_batches, counts, [global_batch_size] * len(counts)

    return build_dp_schedule


def _check(args: Any, others: Mapping[str, Any]) -> None:
    """Refuse what only slime's own schedule does."""
    asked = [name for name in others if name != "sample_is_multimodal"]
    asked += [name for name, plain in _PLAIN.items() if getattr(args, name, plain) != plain]
    if asked:
        message = f"{asked[0]} is scheduled by slime's own build_dp_schedule alone; use that, or leave it out"
        raise InvalidInputError(message, code="argument_invalid")
