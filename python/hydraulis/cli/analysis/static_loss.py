"""The loss of the best static strategy against a strategy for each batch, on the same batches."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hydraulis._core import CostProfile
from hydraulis.cli.analysis.sampled_batches import SampledBatches
from hydraulis.cli.options import cluster_of
from hydraulis.cli.terminal.progress import Progress
from hydraulis.planner import load_profile
from hydraulis.planner.compare import ComparisonSetup, PlannerUnderTest, compare


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticLoss:
    """Predicted times of the best static strategy and of a search for each batch.

    Attributes:
        profile: Cost profile of both planners.
        gpus: GPUs of the cluster.
        static: Result of the best static strategy.
        search: Result of the search.
    """

    profile: CostProfile
    gpus: int
    static: PlannerUnderTest
    search: PlannerUnderTest

    @classmethod
    def of(cls, arguments: argparse.Namespace, batches: SampledBatches, progress: Progress) -> Self:
        """Plan and simulate the batches both ways, with the profile and cluster of the options."""
        profile = load_profile(arguments.profile)
        cluster = cluster_of(arguments, profile)
        setting = ComparisonSetup(
            profile=profile,
            cluster=cluster,
            batches=batches.lengths,
            places=batches.places,
            memory=arguments.memory,
        )
        static, search = compare(setting, ("static", "search"), progress)
        return cls(profile=profile, gpus=cluster.gpus, static=static, search=search)

    @property
    def planners(self) -> tuple[PlannerUnderTest, PlannerUnderTest]:
        """The results of both planners, the static one first."""
        return self.static, self.search

    @property
    def strategy(self) -> str:
        """Best static strategy."""
        return self.static.name.removeprefix("static ")

    @property
    def ratio(self) -> float:
        """Time of the static strategy relative to the search."""
        return self.static.mean_ms / self.search.mean_ms

    def __str__(self) -> str:
        """Describe the comparison in a sentence."""
        return (
            f"On {self.profile.name} with {self.gpus} GPUs the predicted mean iteration takes "
            f"{self.static.mean_ms:,.0f} ms with the best static strategy, {self.strategy}, and "
            f"{self.search.mean_ms:,.0f} ms with a strategy for each batch: {self.ratio:.2f} times as long."
        )

    def to_dict(self) -> dict[str, object]:
        """Return the comparison as `--json` prints it."""
        return {
            "profile": self.profile.name,
            "gpus": self.gpus,
            "static": self.strategy,
            "static_ms": self.static.mean_ms,
            "search_ms": self.search.mean_ms,
            "ratio": self.ratio,
            "extrapolations": [str(one.extrapolation) for one in self.planners if one.extrapolation],
        }

    def save(self, figure: Path) -> None:
        """Draw both planners into a file."""
        # Imported here: without a figure the command works without matplotlib.
        from hydraulis.report.comparison import comparison_figure

        comparison_figure(self.planners, f"{self.profile.name} on {self.gpus} GPUs").save(figure)
