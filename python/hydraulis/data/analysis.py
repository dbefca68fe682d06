"""What the lengths of a data set look like, and how uneven the batches are that are drawn from it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import SequenceSource
from hydraulis.data.sampling.run_sampler import make_sampler

Integers = npt.NDArray[np.int64]

QUANTILES = (0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBin:
    """The sequences of one range of lengths.

    Attributes:
        first: the shortest length of the range.
        last: the longest one.
        sequences: in it.
        tokens: of them.
        squares: the sum of their squared lengths, to which attention's time is proportional.
    """

    first: int
    last: int
    sequences: int
    tokens: int
    squares: float

    @property
    def range(self) -> str:
        """Its lengths, as tables and figures write them."""
        return f"{self.first:,}-{self.last:,}" if self.first < self.last else f"{self.first:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthStatistics:
    """Lengths in numbers.

    Attributes:
        sequences: there are.
        tokens: of all.
        targets: tokens that count in the loss.
        mean: tokens of a sequence.
        quantiles: by share, the length that so many sequences do not exceed, by nearest rank.
        longest: tokens of the longest sequence.
        bins: whose bounds are powers of two; no empty ones at either end.
    """

    sequences: int
    tokens: int
    targets: int
    mean: float
    quantiles: dict[float, int]
    longest: int
    bins: Sequence[LengthBin]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchImbalance:
    """How uneven batches are when their sequences are dealt out in turn to equal replicas.

    That is what a plain data-parallel sampler does: as many sequences for each replica, whatever they are.
    There are no more replicas than half of the batches have sequences: where most batches leave replicas
    empty, that they are uneven says nothing of lengths. Long sequences leave some empty in a batch of few,
    which counts.

    Attributes:
        batches: that were looked at.
        replicas: to which they were dealt.
        median_sequences: which half of the batches do not exceed, by nearest rank.
        sequences: of a batch, in the mean.
        tokens: of a batch, in the mean.
        longest: the longest sequence of each batch, in rising order.
        token_imbalance: by batch, the tokens of the fullest replica over those of the mean one.
        square_imbalance: by batch, the same of the sums of squared lengths.
    """

    batches: int
    replicas: int
    median_sequences: int
    sequences: float
    tokens: float
    longest: Sequence[int]
    token_imbalance: Sequence[float]
    square_imbalance: Sequence[float]

    @property
    def replica_limit(self) -> str | None:
        """Why there are no more replicas; None where sequences would allow more."""
        as_many = self.replicas == self.median_sequences
        return "half of the batches have no more sequences" if as_many else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What is known of a data set by its lengths.

    Attributes:
        lengths: in numbers.
        batches: how uneven they are; None where none were drawn.
    """

    lengths: LengthStatistics
    batches: BatchImbalance | None

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_dict` gave, as JSON.

        Raises:
            ValueError: it is no JSON.
            TypeError, KeyError: a field is missing, or there is another.
        """
        document = json.loads(text)
        lengths = document["lengths"]
        bins = [LengthBin(**one) for one in lengths["bins"]]
        # JSON has no keys but strings.
        quantiles = {float(share): length for share, length in lengths["quantiles"].items()}
        batches = document["batches"]
        return cls(
            lengths=LengthStatistics(**(lengths | {"bins": bins, "quantiles": quantiles})),
            batches=None if batches is None else BatchImbalance(**batches),
        )


def compute_length_statistics(lengths: Integers, target_counts: Integers) -> LengthStatistics:
    """Sum up lengths.

    Args:
        lengths: tokens of each sequence, at least one, each at least 1.
        target_counts: targets of each.
    """
    values, counts = np.unique(lengths, return_counts=True)
    ranks = np.cumsum(counts)
    quantiles = {
        share: int(values[np.searchsorted(ranks, np.ceil(share * len(lengths)))]) for share in QUANTILES
    }
    tokens = int((values * counts).sum())
    return LengthStatistics(
        sequences=len(lengths),
        tokens=tokens,
        targets=int(target_counts.sum()),
        mean=tokens / len(lengths),
        quantiles=quantiles,
        longest=int(values[-1]),
        bins=_bins(values, counts),
    )


def compute_batch_imbalance(batches: Sequence[Integers], most_replicas: int) -> BatchImbalance:
    """Deal the sequences of each batch out in turn, and compare the replicas.

    Args:
        batches: the lengths of each, in their order.
        most_replicas: to which they are dealt; to fewer where most batches have fewer sequences.
    """
    sizes = sorted(len(batch) for batch in batches)
    median = sizes[(len(sizes) - 1) // 2]
    replicas = min(most_replicas, median)
    tokens, squares = [], []
    for batch in batches:
        replica = np.arange(len(batch)) % replicas
        tokens.append(_over_mean(np.bincount(replica, weights=batch, minlength=replicas)))
        work = batch.astype(np.float64) ** 2
        squares.append(_over_mean(np.bincount(replica, weights=work, minlength=replicas)))
    return BatchImbalance(
        batches=len(batches),
        replicas=replicas,
        median_sequences=median,
        sequences=float(np.mean(sizes)),
        tokens=float(np.mean([batch.sum() for batch in batches])),
        longest=sorted(int(batch.max()) for batch in batches),
        token_imbalance=tokens,
        square_imbalance=squares,
    )


def _bins(values: Integers, counts: Integers) -> list[LengthBin]:
    bins = []
    first = 1 << (int(values[0]).bit_length() - 1)
    while first <= values[-1]:
        inside = slice(*np.searchsorted(values, (first, 2 * first)))
        length, count = values[inside], counts[inside]
        bins.append(
            LengthBin(
                first=first,
                last=2 * first - 1,
                sequences=int(count.sum()),
                tokens=int((length * count).sum()),
                squares=float((length.astype(np.float64) ** 2 * count).sum()),
            )
        )
        first *= 2
    return bins


def _over_mean(loads: npt.NDArray[Any]) -> float:
    return float(loads.max() / loads.mean())


_MOST_BATCHES = 50


def analyze_run(config: RunConfig, data: SequenceSource, replicas: int) -> Analysis:
    """Look at all lengths, and at the first batches.

    Args:
        config: of the run, its number of steps known.
        data: that is trained on.
        replicas: to which plain data parallelism would deal each batch out, if it has so many sequences.
    """
    sampler = make_sampler(config.data, data, config.train.seed, config.train.epochs)
    steps = range(min(_MOST_BATCHES, config.train.num_steps))
    return Analysis(
        lengths=compute_length_statistics(data.lengths, data.target_counts),
        batches=compute_batch_imbalance(
            [data.lengths[sampler.batch(step).sequences] for step in steps], replicas
        ),
    )
