"""What a decoder has to know of the sequences that its tokens belong to.

Legend: T tokens that are here, N query heads, K key/value heads, D head dim.
"""

from typing import Protocol

from torch import Tensor


class Sequences(Protocol):
    """Where tokens stand in their sequences, and how they attend to each other.

    All else that a decoder computes, it computes for each token by itself. So who lays sequences out says how
    they attend: a packed micro-batch here, or its share on one rank of several.
    """

    @property
    def position_T(self) -> Tensor:  # noqa: N802  a tensor bears its shape
        """int64: the position of each token in its sequence."""

    def attend(self, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """Attend causally inside each sequence; query head n uses key/value head `n // (N / K)`.

        Args:
            q_TND: queries, scaled inside by `D ** -0.5`.
            k_TKD: keys; K divides N.
            v_TKD: values.

        Returns:
            o_TND, contiguous, in the dtype of the queries.
        """
