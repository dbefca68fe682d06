"""The parts of the first minutes on a device, in the order of their weight, and the claims they decide."""

import sys
from typing import Any

from benches.first_gpu.judgement import Claim, Judgement, by_exit, by_figures, by_tests
from benches.first_gpu.runner import Outcome, Part

_PYTEST = (
    *(sys.executable, "-m", "pytest", "-v", "-rfE", "--tb=short", "-p", "no:cacheprovider"),
    *("-p", "no:xdist", "-W", "default", "--timeout", "240", "--continue-on-collection-errors"),
)
_BENCH = (sys.executable, "-m", "benches.gpu", "--json", "{json}", "--only")
_ON_DEVICES = "tests/runtime/test_on_devices.py"
# Of the distributed suite the parts that differ from those above; `make test-gpu` runs all of it.
_SUITE = (
    *("tests/runtime/test_worker.py", "tests/runtime/test_worker_precision.py"),
    *("tests/runtime/redistribute/test_redistribution.py", "tests/parallel/test_collectives.py"),
    *("tests/parallel/test_vocabulary.py", "-m", "devices", "-k", "not random_and and not test_float32"),
)
# Kernels are loaded late, since the checker rewrites each one that is loaded.
_MEMCHECK = (
    "command -v compute-sanitizer >/dev/null || { echo 'compute-sanitizer is not installed'; exit 1; }; "
    "exec compute-sanitizer --tool memcheck --error-exitcode 9 --target-processes all "
    f"{sys.executable} -m pytest -q -p no:cacheprovider -W default --timeout 240 "
    "tests/runtime/test_on_device.py -k 'equal_the_cpus and cuda and float32 and not selective and not full'"
)

PARTS = (
    Part(
        name="machine", command=(sys.executable, "-m", "benches.gpu.machine", "--json", "{json}"), limit_s=60
    ),
    Part(
        name="nccl",
        command=(sys.executable, "-m", "benches.first_gpu.nccl_probe", "--json", "{json}"),
        limit_s=120,
    ),
    Part(
        name="ranks",
        command=(
            *(*_PYTEST, _ON_DEVICES, "-k"),
            "cuda and ((every_degree and not nodes and not no-stages) or compiled or share_memory)",
        ),
        limit_s=280,
    ),
    Part(
        name="adversaries",
        command=(
            *(*_PYTEST, _ON_DEVICES, "-k"),
            "cuda and (host or (adversary and not launch-waits and (2-ranks or launch-order)))",
        ),
        limit_s=330,
    ),
    Part(
        name="one-rank",
        command=(
            *(*_PYTEST, "tests/runtime", "tests/model", "tests/parallel", "tests/profile", "-m", "gpu"),
            f"--deselect={_ON_DEVICES}",
        ),
        limit_s=240,
    ),
    Part(name="step-1b", command=(*_BENCH, "step-1b"), limit_s=200),
    Part(name="step-8b", command=(*_BENCH, "step-8b"), limit_s=200),
    Part(name="profile", command=(*_BENCH, "profile"), limit_s=200),
    Part(name="attention", command=(*_BENCH, "attention"), limit_s=100),
    Part(name="rows", command=(*_BENCH, "rows"), limit_s=120),
    Part(name="collectives", command=(*_BENCH, "collectives"), limit_s=120),
    Part(
        name="suite",
        command=(*_PYTEST, *_SUITE),
        limit_s=400,
        environment={"HYDRAULIS_TEST_DEVICE": "cuda"},
    ),
    Part(
        name="memcheck",
        command=("sh", "-c", _MEMCHECK),
        limit_s=240,
        environment={"CUDA_MODULE_LOADING": "LAZY", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    ),
    Part(
        name="faults",
        command=(*_PYTEST, "--timeout", "500", "tests/faults/test_campaign.py", "-m", "devices"),
        limit_s=600,
        environment={"HYDRAULIS_TEST_DEVICE": "cuda"},
    ),
    # Last, because ranks that share a device take turns at every launch.
    Part(
        name="launch-waits",
        command=(*_PYTEST, "--timeout", "420", _ON_DEVICES, "-k", "cuda and launch-waits"),
        limit_s=1200,
    ),
)

_ADVERSARIES = {
    "launch-waits": "each launch waits for its end",
    "one-queue": "all streams share one queue",
    "launch-order": "NCCL runs communication in the order of launches",
    "many-blocks": "each communication takes 24 blocks",
    "lazy-kernels": "kernels are loaded at their first launch",
    "no-cache": "each allocation waits for the device",
}
# Claims about one rank by the names of their tests; a package that is not installed settles nothing.
_OF_ONE_RANK = {
    "attention/.*flash-attn-3": "FlashAttention-3 equals the reference (package flash-attn-3)",
    "attention/.*flash-attn-4": "FlashAttention-4 equals the reference (package flash-attn-4)",
    "each_leaf_on_a_device": "Each Triton kernel is as near to exact as torch's operations",
    "compiled_step.*cuda": "Compiled operations of layers give the plain gradients (`train.compile`)",
    "step_in_float8.*cuda": "A step in float8 gives gradients near those in bfloat16 (`train.float8`)",
    "request_beyond": "A request beyond the device's memory is one named error",
    "one_fails_alone.*cuda": "A rank that fails alone ends the others over NCCL, with the recorder's dumps",
    "loss_ends_the_wait": "The loss of a rank ends the wait for a device that still works",
}
_SHAPES = {"step-1b": "1.1 billion parameters", "step-8b": "layers of 8 billion parameters"}
# Most relative errors of the profile's predictions.
_TIME_ERROR, _MEMORY_EXCESS = 0.1, 0.25
_NUM_COLLECTIVES = 5


def _exchange(outcome: Outcome) -> tuple[Judgement, str]:
    """Judge the values of the exchange; without any, NCCL has refused it."""
    if not outcome.figures and outcome.status in ("failed", "crashed"):
        return "fails", outcome.last_words
    return by_figures(_exchanges)(outcome)


def _exchanges(figures: dict[str, Any]) -> tuple[bool, str]:
    wrong = [name for name, is_right in figures["is_right"].items() if not is_right]
    used = figures["device_bytes_in_use"] / 2**20
    version = ".".join(map(str, figures["nccl"]))
    said = f"wrong: {', '.join(wrong)}" if wrong else "all values are right"
    return not wrong, f"NCCL {version}, {said}, {used:,.0f} MiB in use with 2 ranks"


def _faster_than(own_way: str, other: str) -> Any:
    def judge(figures: dict[str, Any]) -> tuple[bool, str]:
        rows = {row["way"]: row for row in figures["steps"]}
        own, compared = rows[own_way], rows[other]
        for row in (own, compared):
            if row["refusal"]:
                message = f"{row['way']}: {row['refusal']}"
                raise ValueError(message)
        ratio = own["tokens_per_s"] / compared["tokens_per_s"]
        mfu = "" if own["mfu"] is None else f", MFU {own['mfu']:.1%} and {compared['mfu']:.1%}"
        speeds = f"{own['tokens_per_s']:,.0f} and {compared['tokens_per_s']:,.0f} tokens/s"
        return ratio >= 1.0, f"{speeds} ({ratio:.2f} times){mfu}"

    return judge


def _times(figures: dict[str, Any]) -> tuple[bool, str]:
    error = figures["profile"]["median_time_error"]
    return error <= _TIME_ERROR, f"{error:.1%} in the median of {figures['profile']['steps']} steps"


def _memory(figures: dict[str, Any]) -> tuple[bool, str]:
    planned, held = (figures["profile"][name] for name in ("planned_bytes", "held_bytes"))
    excess = planned / held - 1
    evidence = f"{planned / 2**20:,.0f} MiB planned, {held / 2**20:,.0f} measured ({excess:+.1%})"
    return 0.0 <= excess <= _MEMORY_EXCESS, evidence


def _flash(figures: dict[str, Any]) -> tuple[bool, str]:
    best: dict[str, dict[str, float]] = {}
    for row in figures["attention"]:
        if row["refusal"] is None:
            best.setdefault(row["micro_batch"], {})[row["kernel"]] = row["both_ms"]
    winners = {name: min(kernels, key=kernels.__getitem__) for name, kernels in best.items()}
    said = "; ".join(f"{name}: {kernel}, {best[name][kernel]:.2f} ms" for name, kernel in winners.items())
    return bool(winners) and all("plain" not in kernel for kernel in winners.values()), said


def _collectives(figures: dict[str, Any]) -> tuple[bool, str]:
    rows = figures["collectives"]
    refused = [f"{row['piece']}, {row['way']}: {row['refusal']}" for row in rows if row["refusal"]]
    said = (f"{row['piece']}, {row['way']}: {row['ms']:.2f} ms" for row in rows)
    # The ways of two collectives, two of them through symmetric memory.
    return not refused and len(rows) == _NUM_COLLECTIVES, "; ".join(refused or said)


def _no_invalid_access(outcome: Outcome) -> tuple[Judgement, str]:
    if "is not installed" in outcome.output:
        return "not settled", "compute-sanitizer is not installed"
    return by_exit(outcome)


CLAIMS = (
    Claim(text="Two ranks on one device exchange over NCCL", part="nccl", judge=_exchange),
    *(
        Claim(
            text=f"{ranks} ranks on one device equal one rank in {dtype}",
            part="ranks",
            judge=by_tests(rf"{ranks}-ranks.*{dtype}"),
        )
        for dtype in ("float64", "bfloat16")
        for ranks in (2, 4, 8)
    ),
    Claim(
        text="Two ranks with compiled operations equal one rank (`train.compile`)",
        part="ranks",
        judge=by_tests("compiled_operations"),
    ),
    Claim(
        text="Tensor ranks that share memory equal one rank (`train.symmetric_memory`)",
        part="ranks",
        judge=by_tests("share_memory"),
    ),
    *(
        Claim(
            text=f"No rank hangs, and no sum changes, where {said}",
            part="launch-waits" if name == "launch-waits" else "adversaries",
            judge=by_tests(f"adversary.*{name}"),
        )
        for name, said in _ADVERSARIES.items()
    ),
    Claim(
        text="No stream reads or writes before the one that it needs (torch's stream sanitizer)",
        part="adversaries",
        judge=by_tests("adversary.*sanitizer"),
    ),
    Claim(
        text="The host does not wait for the device within a pipeline",
        part="adversaries",
        judge=by_tests("test_the_host|test_a_host"),
    ),
    Claim(text="One rank on the device computes as the CPU does", part="one-rank", judge=by_tests()),
    *(Claim(text=said, part="one-rank", judge=by_tests(pattern)) for pattern, said in _OF_ONE_RANK.items()),
    *(
        Claim(
            text=f"A step of {shape} is at least as fast as {said}",
            part=part,
            judge=by_figures(_faster_than(own, other)),
        )
        for part, shape in _SHAPES.items()
        for own, other, said in (
            ("hydraulis", "transformers, autocast", "transformers on packed sequences"),
            ("hydraulis, compiled", "torchtitan's form", "torchtitan's form, both compiled"),
        )
    ),
    Claim(
        text=f"A profile predicts the times of iterations within {_TIME_ERROR:.0%}",
        part="profile",
        judge=by_figures(_times),
    ),
    Claim(
        text=f"The planned peak memory is at least the measured one, and at most {_MEMORY_EXCESS:.0%} more",
        part="profile",
        judge=by_figures(_memory),
    ),
    Claim(
        text="A flash kernel is the fastest on every micro-batch", part="attention", judge=by_figures(_flash)
    ),
    Claim(
        text="Tensor ranks exchange by NCCL's own collectives and through symmetric memory",
        part="collectives",
        judge=by_figures(_collectives),
    ),
    Claim(text="The core of the distributed suite passes over NCCL", part="suite", judge=by_tests()),
    Claim(
        text="A run goes on from memory after the loss of ranks, to the same losses",
        part="faults",
        judge=by_tests(),
    ),
    Claim(text="No kernel of a step accesses invalid memory", part="memcheck", judge=_no_invalid_access),
)
