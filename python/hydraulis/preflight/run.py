"""All checks of a run that need no rank, in the order in which the run itself would fail."""

from collections.abc import Iterator

import torch

from hydraulis._core import Cluster
from hydraulis.config.run import RunConfig
from hydraulis.preflight.cluster import ClusterChecks
from hydraulis.preflight.copies import check_copies
from hydraulis.preflight.data import DataChecks
from hydraulis.preflight.finding import Check, Finding, run_check
from hydraulis.preflight.folders import FolderChecks, check_services
from hydraulis.preflight.model import check_model
from hydraulis.preflight.step_time import check_step_time
from hydraulis.progress import ProgressCallback, ignore_progress
from hydraulis.runtime.memory.device_memory import with_device_memory


def preflight(
    config: RunConfig,
    cluster: Cluster,
    progress: ProgressCallback = ignore_progress,
    *,
    is_memory_set: bool = False,
) -> Iterator[Finding]:
    """Check a run without starting a rank or leaving a file behind.

    A refusal that several checks share is reported by the first of them.

    Args:
        config: Configuration of the run.
        cluster: Cluster of the run.
        progress: Callback before each check, with its name and no count.
        is_memory_set: Whether the file or an option, not a preset, sets `planner.memory_mib`.

    Yields:
        The finding of each check, as soon as it is known.
    """
    if config.planner.memory_mib is None and torch.cuda.is_available():
        config = with_device_memory(config, torch.device("cuda", 0))
    data, folders = DataChecks(config), FolderChecks(config)
    ranks = ClusterChecks(config, cluster, is_memory_set=is_memory_set)
    checks: tuple[tuple[str, Check], ...] = (
        ("model", lambda: check_model(config, is_resumed=folders.is_resumed())),
        ("tokenizer", data.tokenizer),
        ("data", data.sources),
        ("length", data.length),
        ("resume", lambda: folders.resume(data.data)),
        ("device", ranks.device),
        ("kernels", ranks.kernels),
        ("profile", lambda: ranks.saved_profile(folders.resumed)),
        ("strategies", lambda: ranks.strategies(data.sequences_per_batch)),
        ("memory", ranks.memory),
        ("longest", lambda: ranks.longest(data.longest, data.longest_prompt)),
        (
            "time",
            lambda: check_step_time(
                config, cluster, ranks.profile, data.train, data.steps, folders.completed
            ),
        ),
        ("output", lambda: folders.output(data.data)),
        ("copies", lambda: check_copies(config, cluster, ranks.profile)),
        ("services", lambda: check_services(config)),
    )
    refusals: dict[tuple[str | None, str], str] = {}
    for name, check in checks:
        progress(f"checking {name}", 0, 0)
        finding = run_check(name, check)
        if finding.status == "refused":
            first = refusals.setdefault((finding.code, finding.text), name)
            if first != name:
                finding = Finding(name=name, status="later", text=f"follows from {first}, which is refused")
        yield finding
