from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from helpers import ROOT
from hydraulis.config.run import load
from hydraulis.data.analysis import analysis_of, batch_imbalance


@dataclass
class Lengths:
    """A source of which nothing but lengths is read."""

    lengths: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def target_counts(self) -> npt.NDArray[np.int64]:
        return self.lengths - 1


def test_a_run_deals_out_to_its_ranks_by_the_rule_of_all_analyses() -> None:
    config = load(str(ROOT / "examples/demo.toml"), ["data.sequences_per_batch=3", "train.steps=7"])
    data = Lengths(np.arange(2, 50))
    found = analysis_of(config, data, 8)  # type: ignore[arg-type]
    assert (found.lengths.sequences, found.lengths.longest) == (48, 49)
    assert found.batches is not None
    assert (found.batches.batches, found.batches.sequences) == (7, 3)
    assert found.batches.replicas == batch_imbalance([np.full(3, 9)], 8).replicas == 3
    two = analysis_of(config, data, 2).batches  # type: ignore[arg-type]
    assert two is not None
    assert (two.replicas, two.why_no_more) == (2, None)
