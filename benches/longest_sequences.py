"""The longest sequences and iteration times of kinds of checkpointing, layer plans and sharding.

    python benches/longest_sequences.py [--models 7B,70B] [--devices 8,16] [--memory 40,80]

Each row is a model on a number of A100 in nodes of 8, by its analytic profile. The longest sequence is
`Planner.longest_admitted` of a search:

- `none`, `selective`, `full` and `full-offload`: each replica has this kind of checkpointing in all layers;
- `sharded`: `full-offload` with sharded parameters, for schemes without stages.

The times are the predicted iterations of a search in the mean over seeded batches, whose lengths are
log-normal (exp of a mean of 7 and a deviation of 1.5) and at most 32,768 tokens:

- `best kind`: the shortest of one search for each kind, with its name; kinds that do not admit the longest
  sequence of the batches are left out;
- `kinds`: a search that may give each replica another kind of `none`, `selective` and `full`;
- `layer plans`: the same search with three layer plans between each two of them, and its change from
  `best kind`.

`-` stands for a longest sequence where no replica has memory for parameters, gradients, optimizer state and
any tokens, and for an iteration where the longest sequence of the batches does not fit.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hydraulis import Cluster, CostProfile, ModelShape, Planner
from hydraulis.config.kinds import CheckpointingKind
from hydraulis.config.model import ModelConfig
from hydraulis.errors import InfeasibleError
from hydraulis.planner.model_shape import build_model_shape

Batch = npt.NDArray[np.int64]
KINDS: tuple[CheckpointingKind, ...] = ("none", "selective", "full")
LAYER_PLANS = 3
MODELS = ("7B", "13B", "32B", "70B")
LONGEST = 32_768
# Names of the columns of longest sequences.
LONGEST_OF = (*KINDS, "full-offload", "sharded")
HEADER = (
    "| model | GPUs | longest, none | selective | full | full-offload | sharded "
    "| iteration, best kind | kinds | layer plans | change |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|\n"
)


class Row(NamedTuple):
    """A model on a cluster.

    Attributes:
        longest: Tokens of the longest admitted sequence of each of `LONGEST_OF`; 0 where nothing fits.
        iteration_ms: Mean predicted iteration in ms of each kind, of `kinds` and of `layer plans`, without
            those that do not admit the longest sequence of the batches.
    """

    longest: dict[str, int]
    iteration_ms: dict[str, float]


def shape_of(model: str) -> ModelShape:
    """Return the shape of a shipped table's model, or of Llama 2 70B, which has no table."""
    if model != "70B":
        shape = CostProfile.preset(f"llama-{model.lower()}-a800").model
        assert shape is not None
        return shape
    config = ModelConfig(
        vocab_size=32_000,
        hidden_size=8192,
        intermediate_size=28_672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
    )
    return build_model_shape(config)


def drawn(batches: int, tokens: int) -> list[Batch]:
    """Draw batches of log-normal lengths, each with at least `tokens` tokens."""
    generator = np.random.default_rng(0)
    found = []
    for _ in range(batches):
        lengths = np.clip(generator.lognormal(7, 1.5, tokens // 100), 1, LONGEST).astype(np.int64)
        found.append(lengths[: np.searchsorted(np.cumsum(lengths), tokens) + 1])
    return found


def compare(shape: ModelShape, gpus: int, device: str, batches: Sequence[Batch]) -> Row:
    """Find the longest sequences, and plan the batches where their sequences fit."""
    cluster = Cluster(gpus=gpus, gpus_per_node=8)

    def planner_of(profile: CostProfile) -> Planner | None:
        try:
            return Planner(profile, cluster, strategies="search")
        except InfeasibleError:
            return None

    def analytic(kinds: Sequence[CheckpointingKind]) -> CostProfile:
        return CostProfile.analytic(shape, cluster, device, checkpointing=kinds)

    of_kind = {kind: analytic([kind]) for kind in (*KINDS, "full-offload")}
    sharded = of_kind["full-offload"].with_sharding("parameters")
    planners: dict[str, Planner | None] = {kind: planner_of(profile) for kind, profile in of_kind.items()}
    planners["sharded"] = planner_of(sharded)
    longest = {name: 0 if planner is None else planner.longest_admitted for name, planner in planners.items()}
    kinds = analytic(KINDS)
    timed: dict[str, Planner | None] = {kind: planners[kind] for kind in KINDS}
    timed["kinds"] = planner_of(kinds)
    timed["layer plans"] = planner_of(kinds.with_layer_plans(LAYER_PLANS))
    needed = max(int(batch.max()) for batch in batches)
    times = {
        name: float(np.mean([planner.plan(batch).iteration_ms for batch in batches]))
        for name, planner in timed.items()
        if planner is not None and planner.longest_admitted >= needed
    }
    return Row(longest, times)


def line(model: str, gpus: str, row: Row) -> str:
    """Return a row of the table."""
    longest = [f"{row.longest[name]:,}" if row.longest[name] else "-" for name in LONGEST_OF]
    times = row.iteration_ms
    if "layer plans" not in times:
        return f"| {' | '.join((model, gpus, *longest, '-', '-', '-', '-'))} |\n"
    best = min((kind for kind in KINDS if kind in times), key=times.__getitem__)
    change = times["layer plans"] / times[best] - 1
    shown = (
        f"{times[best]:,.0f} ms ({best})",
        f"{times['kinds']:,.0f} ms",
        f"{times['layer plans']:,.0f} ms",
    )
    return f"| {' | '.join((model, gpus, *longest, *shown, f'{change:+.1%}'))} |\n"


def table(
    models: Sequence[str], devices: Sequence[int], memories: Sequence[int], batches: Sequence[Batch]
) -> Iterator[str]:
    """Give the lines of the table as they are found."""
    yield HEADER
    for model in models:
        shape = shape_of(model)
        for gpus in devices:
            for memory in memories:
                row = compare(shape, gpus, f"A100-{memory}GB", batches)
                yield line(model, f"{gpus} x {memory} GB", row)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--devices", default="8,16,64")
    parser.add_argument("--memory", default="40,80", help="GB of a device: 40 or 80")
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=300_000, help="of a batch")
    options = parser.parse_args()
    devices, memories = ([int(one) for one in text.split(",")] for text in (options.devices, options.memory))
    batches = drawn(options.batches, options.tokens)
    for text in table(options.models.split(","), devices, memories, batches):
        sys.stdout.write(text)
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
