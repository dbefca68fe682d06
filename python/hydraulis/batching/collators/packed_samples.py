"""Packs the samples of a micro-batch end to end: tokens, labels and positions, as arrays.

Legend: T tokens of the micro-batch with padding, n sequences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hydraulis.batching.epoch.order import Indices
from hydraulis.errors import InvalidInputError

IGNORE_INDEX: Final = -100
"""Label of tokens that are no target, in torch and transformers."""

# Fields of samples that say which tokens are targets, as TRL and transformers name them.
MASKS: Final = ("loss_mask", "completion_mask", "assistant_masks")

# Kinds of NumPy's types: whole numbers; and truth values, which masks of other tools have as numbers.
_INTEGER_KINDS: Final = "iu"
_MASK_KINDS: Final = "biuf"

Sample = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class PackedSamples:
    """Samples end to end, each followed by its padding; the padding of the micro-batch is at the end.

    Attributes:
        tokens: Tokens, int64 [T].
        labels: The token itself where it is a target, `IGNORE_INDEX` elsewhere, int64 [T]. The first token of
            a sequence and padding are no targets.
        positions: Position of each token in its sequence, int64 [T]; padding of a sequence counts on, padding
            of the micro-batch starts at 0.
        lengths: Tokens of each sequence, int64 [n].
        padded: Tokens of each sequence with its padding, int64 [n].
    """

    tokens: Indices
    labels: Indices
    positions: Indices
    lengths: Indices
    padded: Indices

    @property
    def num_targets(self) -> int:
        """Number of target tokens."""
        return int((self.labels != IGNORE_INDEX).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Rules for padding and truncation.

    Attributes:
        pad_to: Divisor of the tokens of a micro-batch, as the sampler's `pad_to`.
        pad_sequence_to: Divisor of the tokens of a sequence with its padding, as the sampler's.
        max_tokens: Most tokens of a sequence, which is cut at its end; None for no limit. With the sampler's
            `too_long="truncate"` it is `sampler.most_tokens`.
        cap_tokens: Most tokens of a micro-batch with padding, as the sampler's; more are refused. None for no
            limit.
        pad_token: Token of the padding.
    """

    pad_to: int = 1
    pad_sequence_to: int = 1
    max_tokens: int | None = None
    cap_tokens: int | None = None
    pad_token: int = 0

    def __post_init__(self) -> None:
        for name in ("pad_to", "pad_sequence_to", "max_tokens", "cap_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                message = f"{name} is {value}: it must be at least 1; correct it"
                raise InvalidInputError(message, code="argument_invalid")

    def pack(self, samples: Sequence[Sample]) -> PackedSamples:
        """Pack samples.

        Args:
            samples: Samples with `input_ids`, and with `labels` or a mask of the targets (`loss_mask`,
                `completion_mask`, `assistant_masks`), or without either; a field that is None is absent. No
                sample gives padding alone.

        Raises:
            InvalidInputError: A sample is refused by `read_sample`, or the micro-batch exceeds `cap_tokens`
                (code `micro_batch_invalid`).
        """
        tokens, labels = [], []
        for index, sample in enumerate(samples):
            token, label = read_sample(sample, index)
            tokens.append(token[: self.max_tokens])
            labels.append(label[: self.max_tokens])
        lengths = np.array([len(token) for token in tokens], dtype=np.int64)
        padded = -(-lengths // self.pad_sequence_to) * self.pad_sequence_to
        size = max(self.pad_sequence_to, int(padded.sum()))
        size += -size % self.pad_to
        self.check_cap(size)
        packed = PackedSamples(
            tokens=np.full(size, self.pad_token, dtype=np.int64),
            labels=np.full(size, IGNORE_INDEX, dtype=np.int64),
            positions=np.arange(size, dtype=np.int64),
            lengths=lengths,
            padded=padded,
        )
        ends = np.cumsum(padded)
        for token, label, start, end in zip(tokens, labels, ends - padded, ends, strict=True):
            packed.tokens[start : start + len(token)] = token
            packed.labels[start + 1 : start + len(token)] = label[1:]
            packed.positions[start:end] -= start
        if len(ends):
            packed.positions[ends[-1] :] -= ends[-1]
        return packed

    def check_cap(self, size: int) -> None:
        """Check that a micro-batch has at most `cap_tokens` tokens.

        Args:
            size: Tokens of the micro-batch with padding.

        Raises:
            InvalidInputError: It has more (code `micro_batch_invalid`).
        """
        if self.cap_tokens is not None and size > self.cap_tokens:
            message = (
                f"the micro-batch has {size:,} tokens with padding, and cap_tokens is {self.cap_tokens:,}: "
                "samples are longer than their lengths; give the sampler their lengths and paddings"
            )
            raise InvalidInputError(message, code="micro_batch_invalid")


def bounds(sizes: npt.NDArray[np.int64], total: int | None = None) -> npt.NDArray[np.int32]:
    """Return the cumulative sizes from 0, int32 [n + 1]; a last segment reaches `total` if it is given.

    Args:
        sizes: Size of each segment, int64 [n].
        total: End of the last segment; None for the sum of the sizes.
    """
    ends = np.concatenate(([0], np.cumsum(sizes)))
    if total is not None and ends[-1] < total:
        ends = np.append(ends, total)
    converted: npt.NDArray[np.int32] = ends.astype(np.int32)
    return converted


def read_sample(sample: Sample, index: int) -> tuple[Indices, Indices]:
    """Return the tokens and labels of a sample, int64; labels outside of its masks are `IGNORE_INDEX`.

    Args:
        sample: Sample as `Packing.pack` takes it.
        index: Number of the sample for a message.

    Raises:
        InvalidInputError: The sample is no mapping, or has no tokens, a field of another size or type than
            `read_field` takes, padding, or several sequences (code `micro_batch_invalid`).
    """
    if not isinstance(sample, Mapping):
        kind = type(sample).__name__
        message = (
            f"sample {index} is a {kind}: it must be a mapping; give its tokens as {{'input_ids': [...]}}"
        )
        raise InvalidInputError(message, code="micro_batch_invalid")
    token = read_field(sample, "input_ids", index)
    if token is None:
        message = f"sample {index} has no input_ids; give its tokens in this field"
        raise InvalidInputError(message, code="micro_batch_invalid")
    if not token.size:
        message = f"sample {index} has 0 tokens and must have at least 1; leave it out"
        raise InvalidInputError(message, code="micro_batch_invalid")
    _refuse_parts(sample, index, token.size)
    given = read_field(sample, "labels", index, token.size)
    # Unsigned types have no -100.
    token = token.astype(np.int64)
    label = token if given is None else given.astype(np.int64)
    for name in MASKS:
        mask = read_field(sample, name, index, token.size, kinds=_MASK_KINDS)
        if mask is not None:
            label = np.where(mask.astype(bool), label, IGNORE_INDEX)
    return token, label


def read_field(
    sample: Sample, name: str, index: int, size: int | None = None, *, kinds: str = _INTEGER_KINDS
) -> npt.NDArray[Any] | None:
    """Return a field with one value for each token, [T]; None if the sample has none, or null.

    Args:
        sample: Sample as `Packing.pack` takes it.
        name: Name of the field.
        index: Number of the sample for a message.
        size: Number of its tokens; None for any number.
        kinds: Kinds of NumPy's types that the field may have.

    Raises:
        InvalidInputError: The field has another size, type or number of dimensions (code
            `micro_batch_invalid`).
    """
    field = sample.get(name)
    if field is None:
        return None
    problem = ""
    try:
        values = np.asarray(field)
    except ValueError:
        # Lists of different lengths.
        values = np.empty(0)
        problem = f"{name} of several lists: a sample is one sequence; give each sequence as a sample"
    if values.ndim != 1:
        problem = (
            f"{name} of the shape {list(values.shape)}: a sample is one sequence, whose fields have one "
            "dimension; give each sequence as a sample"
        )
    elif not problem and size is not None and len(values) != size:
        problem = f"{size} tokens and {name} of {len(values)}; give one value for each token"
    elif len(values) and values.dtype.kind not in kinds:
        numbers = "numbers" if "f" in kinds else "whole numbers"
        problem = f"{name} of the type {values.dtype}: they must be {numbers}; convert them"
    if problem:
        message = f"sample {index} has {problem}"
        raise InvalidInputError(message, code="micro_batch_invalid")
    return values


def _refuse_parts(sample: Sample, index: int, size: int) -> None:
    """Refuse a sample of several sequences, or with padding, which would be trained as one sequence."""
    remedy = ""
    parts = sample.get("seq_lengths")
    if parts is not None and np.size(parts) > 1:
        remedy = "has several sequences by its seq_lengths; give each as a sample (packing=False in TRL)"
    positions = sample.get("position_ids")
    if positions is not None and not np.array_equal(np.ravel(positions), np.arange(size)):
        remedy = "has position_ids that do not count from 0; give each sequence as a sample, without them"
    mask = sample.get("attention_mask")
    if mask is not None and not np.all(np.asarray(mask)):
        remedy = "has zeros in attention_mask; cut the padding off, and count the lengths without it"
    if remedy:
        message = f"sample {index} {remedy}"
        raise InvalidInputError(message, code="micro_batch_invalid")
