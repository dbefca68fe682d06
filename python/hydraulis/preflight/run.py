"""Looks at all of a run that can be known before a rank starts, in the order in which it would fail."""

from collections.abc import Iterator

from hydraulis._core import Cluster
from hydraulis.config.run import RunConfig
from hydraulis.preflight.cluster import ClusterLook
from hydraulis.preflight.data import DataLook
from hydraulis.preflight.finding import Finding, Look, find
from hydraulis.preflight.folders import FolderLook, look_at_services
from hydraulis.preflight.model import look_at_model
from hydraulis.progress import ProgressCallback, ignore_progress


def preflight(
    config: RunConfig,
    cluster: Cluster,
    progress: ProgressCallback = ignore_progress,
    *,
    memory_asked: bool = False,
) -> Iterator[Finding]:
    """Look, and give each finding when it is known; nothing is left behind, and no rank is started.

    What several looks are refused for alike is refused once.

    Args:
        config: of the run; that it could be read is the first finding, and not among these.
        cluster: that it is to run on.
        progress: called before each look with its name, and no count: no two take as long.
        memory_asked: whether `planner.memory_mib` was set by hand, and not by a preset.
    """
    data, folders, ranks = (
        DataLook(config),
        FolderLook(config),
        ClusterLook(config, cluster, memory_asked=memory_asked),
    )
    looks: tuple[tuple[str, Look], ...] = (
        ("model", lambda: look_at_model(config, goes_on=folders.goes_on())),
        ("tokenizer", data.tokenizer),
        ("data", data.sources),
        ("length", data.length),
        ("resume", lambda: folders.resume(data.data)),
        ("device", ranks.device),
        ("profile", lambda: ranks.saved_profile(folders.resumed)),
        ("strategies", lambda: ranks.strategies(data.sequences_per_batch)),
        ("memory", ranks.memory),
        ("longest", lambda: ranks.longest(data.longest)),
        ("output", lambda: folders.output(data.data)),
        ("services", lambda: look_at_services(config)),
    )
    refusals: dict[tuple[str | None, str], str] = {}
    for name, look in looks:
        progress(f"looking at {name}", 0, 0)
        finding = find(name, look)
        if finding.status == "refused":
            first = refusals.setdefault((finding.code, finding.text), name)
            if first != name:
                finding = Finding(name=name, status="later", text=f"follows from {first}, which is refused")
        yield finding
