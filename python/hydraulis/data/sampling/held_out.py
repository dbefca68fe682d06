"""Which documents are kept for evaluation."""

import numpy as np
import numpy.typing as npt

Documents = npt.NDArray[np.int64]

# Beside the seed, so that no other permutation of as many documents is the same one.
_PURPOSE = 0x48454C44


def held_out_documents(
    num_documents: int, share: float, seed: int, source: int
) -> tuple[Documents, Documents]:
    """Divide the documents of a source.

    Whole documents are kept, never parts of one. Of few documents at least one is kept, and at least one
    trained on; a single one is not divided.

    Args:
        num_documents: of the source.
        share: how many of them are kept for evaluation; above 0 and below 1.
        seed: chooses them.
        source: the place of the source, so that equally large sources are divided differently.

    Returns:
        The documents to train on and those kept, each in rising order.
    """
    kept = min(max(1, round(share * num_documents)), num_documents - 1)
    order = np.random.default_rng([seed, _PURPOSE, source]).permutation(num_documents)
    return np.sort(order[kept:]), np.sort(order[:kept])
