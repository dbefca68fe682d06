"""What the best static strategy loses against a strategy for each batch, on the same batches."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hydraulis._core import CostProfile
from hydraulis.cli.commands.batches import DrawnBatches
from hydraulis.cli.options import cluster_of
from hydraulis.cli.terminal.progress import Progress
from hydraulis.planner import load_profile
from hydraulis.planner.compare import ComparisonSetup, PlannerUnderTest, compare


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticLoss:
    """What the best static strategy and the planner's own ones are predicted to take for the same batches."""

    profile: CostProfile
    gpus: int
    static: PlannerUnderTest
    search: PlannerUnderTest

    @classmethod
    def of(cls, arguments: argparse.Namespace, batches: DrawnBatches, progress: Progress) -> Self:
        """Plan the batches both ways, on the profile and the cluster that the options name."""
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
    def contestants(self) -> tuple[PlannerUnderTest, PlannerUnderTest]:
        """Both of them."""
        return self.static, self.search

    @property
    def strategy(self) -> str:
        """The static one."""
        return self.static.name.removeprefix("static ")

    @property
    def ratio(self) -> float:
        """How many times as long the static strategy takes."""
        return self.static.mean_ms / self.search.mean_ms

    def __str__(self) -> str:
        """Say it in a sentence."""
        return (
            f"On {self.profile.name} with {self.gpus} GPUs the best static strategy, {self.strategy}, is "
            f"predicted to take {self.static.mean_ms:,.0f} ms an iteration in the mean, and a strategy for "
            f"each batch {self.search.mean_ms:,.0f} ms: the static one takes {self.ratio:.2f} times as long."
        )

    def to_dict(self) -> dict[str, object]:
        """Give it as a JSON document has it."""
        return {
            "profile": self.profile.name,
            "gpus": self.gpus,
            "static": self.strategy,
            "static_ms": self.static.mean_ms,
            "search_ms": self.search.mean_ms,
            "ratio": self.ratio,
            "guesses": [str(one.guess) for one in self.contestants if one.guess],
        }

    def save(self, figure: Path) -> None:
        """Draw both."""
        # Only now: most calls draw nothing, and the command works without matplotlib.
        from hydraulis.report.comparison import comparison_figure

        comparison_figure(self.contestants, f"{self.profile.name} on {self.gpus} GPUs").save(figure)
