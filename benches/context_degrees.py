"""What context parallelism gives a shipped table, and at most other uses of a replica's ranks after it.

    python benches/context_degrees.py --lengths FILE|lognormal:MEAN,DEVIATION [--tokens N] [--longest N]
    python benches/context_degrees.py --errors

No table has measured context degrees, so a table has those of `CostProfile.with_context_degrees`. `--errors`
tests that derivation where it can be tested: it derives each `<tp>` of the shipped tables from half as many
tensor ranks in the same way, and prints the errors of times over the lengths 512, 1,024 and so on up to the
cap. The other rows are for 64 GPUs:

- `table`: a search over the schemes of the table, left out if a sequence is too long for them;
- `context`: a search with the derived schemes as well;
- `no bubbles`: a search that has each pipeline also as one stage, at the caps of its 1F1B. Chunks of
  sequences or split backwards that filled every bubble would not make a replica faster;
- `free groups`: no plan but a bound: each sequence takes the fewest GPU-milliseconds of any scheme that holds
  it, the GPUs are never idle, and no sequence takes longer than by its fastest scheme.

`no bubbles` is found by a search, so its gain is an estimate; that of `free groups` is a bound, and no
regrouping of ranks from micro-batch to micro-batch gains more.
"""

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hydraulis import Cluster, CostProfile, Planner, Scheme
from hydraulis.errors import InfeasibleError
from hydraulis.planner import load_profile, read_lengths

Batch = npt.NDArray[np.int64]
CLUSTER = Cluster(gpus=64, gpus_per_node=8)
LENGTHS = [512 << doublings for doublings in range(7)]
POWERS = {"quadratic_ms_per_token2": 2, "linear_ms_per_token": 1, "fixed_ms": 0}


def tensor_errors(table: CostProfile) -> dict[str, float]:
    """Return derived over measured time, less 1, of tensor degrees from half of them."""
    assert table.model is not None
    measured, analytic = (
        {entry["scheme"]: entry for entry in json.loads(profile.to_json())["schemes"]}
        for profile in (table, CostProfile.analytic(table.model, CLUSTER, table.device))
    )
    found = {}
    for text in set(table.schemes) & {"<tp4>", "<tp8>", "<tp16>"}:
        scheme = Scheme(text)
        base = _text(scheme.tp // 2, 1)
        if base not in measured:
            continue
        for tokens in [tokens for tokens in LENGTHS if tokens <= table.cap_tokens(scheme, CLUSTER)]:
            derived = sum(
                measured[base][field] * analytic[text][field] / analytic[base][field] * tokens**power
                for field, power in POWERS.items()
            )
            found[f"{table.name} {text} at {tokens:,}"] = derived / table.micro_batch_ms(scheme, [tokens]) - 1
    return found


def error_report() -> str:
    """Return the errors of derived tensor degrees over all shipped tables."""
    tables = [tensor_errors(CostProfile.preset(name)) for name in CostProfile.presets()]
    found = {place: abs(error) for table in tables for place, error in table.items()}
    sizes, worst = sorted(found.values()), max(found, key=lambda place: found[place])
    return (
        f"{len(sizes)} times: median {statistics.median(sizes):.1%}, p90 {sizes[len(sizes) * 9 // 10]:.1%}, "
        f"worst {found[worst]:.1%} ({worst})\n"
    )


def without_bubbles(profile: CostProfile, slower: float = 0.0) -> CostProfile:
    """Add to each pipeline a replica of as many ranks that takes one stage's time for a micro-batch.

    Args:
        profile: Cost profile.
        slower: Share by which the added replicas are slower than that.
    """
    document = json.loads(profile.to_json())
    for entry in list(document["schemes"]):
        scheme = Scheme(entry["scheme"])
        if scheme.pp == 1 or scheme.cp > 1:
            continue
        own = {key: value for key, value in entry.items() if not key.startswith("stage_")}
        own["scheme"], own["context"] = stand_in(scheme), "ring"
        for field in ("resident_bytes", "activation_bytes_per_token"):
            own[field] = max(entry[field]) if isinstance(entry[field], list) else entry[field]
        for field in ("quadratic_ms_per_token2", "linear_ms_per_token"):
            own[field] *= 1 + slower
        document["schemes"].append(own)
    return _read(document, f"{profile.name}-full-{slower}", "; pipelines without bubbles")


def stand_in(scheme: Scheme) -> str:
    """Return the scheme that stands for a pipeline without bubbles: no other one of a table recomputes."""
    return _text(scheme.tp, scheme.pp)[:-1] + ",full>"


def _text(tp: int, cp: int) -> str:
    degrees = [f"{name}{degree}" for name, degree in (("tp", tp), ("cp", cp)) if degree > 1]
    return f"<{','.join(degrees) or 1}>"


def _read(document: dict[str, Any], name: str, remark: str) -> CostProfile:
    return CostProfile.from_json(
        json.dumps({**document, "name": name, "source": document["source"] + remark, "strategies": []})
    )


def free_groups_ms(profile: CostProfile, batch: Batch) -> float:
    """Return a time that no plan of a batch is below, whatever groups its ranks form."""
    schemes = []
    for text in profile.schemes:
        scheme = Scheme(text)
        try:
            cap = profile.cap_tokens(scheme, CLUSTER)
        except InfeasibleError:
            continue
        fixed = profile.micro_batch_ms(scheme, [1, 1]) - 2 * _variable(profile, scheme, 1)
        schemes.append((scheme, cap, fixed / cap))
    lengths, counts = np.unique(batch, return_counts=True)
    work, alone = 0.0, 0.0
    for tokens, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        fitting = [one for one in schemes if one[1] >= tokens]
        # A micro-batch's fixed time is shared by at most as many tokens as its cap.
        work += count * min(
            (_variable(profile, scheme, tokens) + share * tokens) * scheme.ranks
            for scheme, _, share in fitting
        )
        alone = max(alone, min(profile.micro_batch_ms(scheme, [tokens]) for scheme, _, _ in fitting))
    return max(work / CLUSTER.gpus, alone)


def _variable(profile: CostProfile, scheme: Scheme, tokens: int) -> float:
    """Return the time of a sequence without its micro-batch's fixed one."""
    pair = profile.micro_batch_ms(scheme, [tokens, tokens])
    return pair - profile.micro_batch_ms(scheme, [tokens])


def search_ms(profile: CostProfile, batches: Sequence[Batch]) -> float:
    """Return the mean time of the search's plans."""
    planner = Planner(profile, CLUSTER, strategies="search")
    return float(np.mean([planner.plan(batch).iteration_ms for batch in batches]))


def compare(table: CostProfile, batches: Sequence[Batch]) -> dict[str, float]:
    """Return the mean time of each way, in ms; without `table` where its caps are too small."""
    context = table.with_context_degrees()
    found = {}
    with contextlib.suppress(InfeasibleError):
        found["table"] = search_ms(table, batches)
    found["context"] = search_ms(context, batches)
    found["no bubbles"] = search_ms(without_bubbles(context), batches)
    found["free groups"] = float(np.mean([free_groups_ms(context, batch) for batch in batches]))
    return found


def report(found: dict[str, float]) -> str:
    """Return a table of the times and their ratios to the plans with context degrees."""
    return "".join(
        f"{name:<12} {ms:>10,.0f} ms {ms / found['context']:>8.3f}\n" for name, ms in found.items()
    )


def drawn(source: str, tokens: int, number: int, longest: int) -> list[Batch]:
    """Cut lengths of a file, or log-normal ones, into batches of at least `tokens` tokens."""
    if source.startswith("lognormal:"):
        mean, deviation = map(float, source.removeprefix("lognormal:").split(","))
        values = np.random.default_rng(0).lognormal(mean, deviation, number * tokens // 16)
        lengths = np.maximum(values, 1).astype(np.int64)
    else:
        lengths = read_lengths(Path(source))
    cut = np.minimum(lengths, longest)
    ends = np.searchsorted(np.cumsum(cut), tokens * np.arange(1, number + 1)) + 1
    return [batch for batch in np.split(cut[: ends[-1]], ends[:-1]) if len(batch)]


def main() -> int:
    """Compare the ways on batches of the lengths of a file."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--errors", action="store_true", help="print the errors of derived tensor degrees alone"
    )
    options.add_argument(
        "--lengths",
        default="lognormal:6.2,1.2",
        help="a file with one length per line, or `lognormal:MEAN,DEVIATION`",
    )
    options.add_argument("--profile", default="llama-32b-a800", help="a shipped table")
    options.add_argument("--tokens", type=int, default=200_000, help="of a batch")
    options.add_argument("--longest", type=int, default=32_768, help="tokens; longer sequences are cut")
    options.add_argument("--batches", type=int, default=8)
    arguments = options.parse_args()
    if arguments.errors:
        sys.stdout.write(error_report())
        return 0
    batches = drawn(arguments.lengths, arguments.tokens, arguments.batches, arguments.longest)
    sys.stdout.write(report(compare(load_profile(arguments.profile), batches)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
