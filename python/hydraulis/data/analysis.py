"""The distribution of a data set's lengths, and the imbalance of its batches over equal replicas."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hydraulis.config.run import RunConfig
from hydraulis.data.dataset import SequenceSource
from hydraulis.data.sampling.run_sampler import make_sampler
from hydraulis.text.documents import parse_json

Integers = npt.NDArray[np.int64]

QUANTILES = (0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBin:
    """The sequences of one range of lengths.

    Attributes:
        first: Smallest length of the range.
        last: Largest length of the range, at most the longest sequence.
        sequences: Number of sequences.
        tokens: Number of their tokens.
        squares: Sum of their squared lengths, to which the time of attention is proportional.
    """

    first: int
    last: int
    sequences: int
    tokens: int
    squares: float

    @property
    def range(self) -> str:
        """Text of the range for tables and figures."""
        return f"{self.first:,}-{self.last:,}" if self.first < self.last else f"{self.first:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthStatistics:
    """Statistics of the lengths.

    Attributes:
        sequences: Number of sequences.
        tokens: Number of tokens.
        targets: Number of targets.
        mean: Mean tokens of a sequence.
        quantiles: Quantiles of the lengths in tokens by share, by nearest rank.
        longest: Tokens of the longest sequence.
        bins: Histogram with powers of two as bounds, without empty bins at its ends.
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
    """The imbalance of batches whose sequences are assigned in turn to equal replicas.

    A plain data-parallel sampler assigns in this way: equally many sequences to each replica, regardless of
    their lengths. The number of replicas is at most the median number of sequences of a batch: with more,
    most batches would leave replicas empty for lack of sequences. A batch with fewer sequences than that
    still counts its empty replicas.

    Attributes:
        batches: Number of examined batches.
        replicas: Number of replicas.
        median_sequences: Median number of sequences of a batch, by nearest rank.
        sequences: Mean number of sequences of a batch.
        tokens: Mean number of tokens of a batch.
        longest: Tokens of the longest sequence of each batch, in rising order.
        token_imbalance: Tokens of the fullest replica over those of the mean one, by batch.
        square_imbalance: The same ratio of the sums of squared lengths, by batch.
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
        """Reason for the number of replicas; None if the sequences would allow more."""
        as_many = self.replicas == self.median_sequences
        return "half of the batches have no more sequences" if as_many else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The analysis of a data set.

    Attributes:
        lengths: Statistics of the lengths.
        batches: Imbalance of the batches; None without batches.
    """

    lengths: LengthStatistics
    batches: BatchImbalance | None

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the JSON of `to_dict`.

        Raises:
            ValueError: The text is not JSON.
            TypeError, KeyError: A field is missing or unknown.
        """
        document = parse_json(text)
        lengths = document["lengths"]
        bins = [LengthBin(**one) for one in lengths["bins"]]
        # The keys of JSON are strings.
        quantiles = {float(share): length for share, length in lengths["quantiles"].items()}
        batches = document["batches"]
        return cls(
            lengths=LengthStatistics(**(lengths | {"bins": bins, "quantiles": quantiles})),
            batches=None if batches is None else BatchImbalance(**batches),
        )


def compute_length_statistics(lengths: Integers, target_counts: Integers) -> LengthStatistics:
    """Compute the statistics of lengths.

    Args:
        lengths: Tokens of each sequence, each at least 1, int64 [n] with n at least 1.
        target_counts: Targets of each sequence, int64 [n].
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


def compute_batch_imbalance(batches: Sequence[Integers], max_replicas: int) -> BatchImbalance:
    """Assign the sequences of each batch to replicas in turn, and compare the replicas.

    Args:
        batches: Tokens of each batch's sequences, in their order.
        max_replicas: Maximum number of replicas; fewer if most batches have fewer sequences.
    """
    sizes = sorted(len(batch) for batch in batches)
    median = sizes[(len(sizes) - 1) // 2]
    replicas = min(max_replicas, median)
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
                last=min(2 * first - 1, int(values[-1])),
                sequences=int(count.sum()),
                tokens=int((length * count).sum()),
                squares=float((length.astype(np.float64) ** 2 * count).sum()),
            )
        )
        first *= 2
    return bins


def _over_mean(loads: npt.NDArray[Any]) -> float:
    return float(loads.max() / loads.mean())


_MAX_BATCHES = 50


def analyze_run(config: RunConfig, data: SequenceSource, replicas: int) -> Analysis:
    """Analyse all lengths and the first 50 batches of a run.

    Args:
        config: Configuration of the run with its number of steps.
        data: Training sequences.
        replicas: Maximum number of replicas of plain data parallelism.
    """
    sampler = make_sampler(config.data, data, config.train.seed, config.train.epochs)
    steps = range(min(_MAX_BATCHES, config.train.num_steps))
    return Analysis(
        lengths=compute_length_statistics(data.lengths, data.target_counts),
        batches=compute_batch_imbalance(
            [data.lengths[sampler.batch(step).sequences] for step in steps], replicas
        ),
    )
