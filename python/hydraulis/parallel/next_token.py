"""The next token of sequences, chosen over a vocabulary that tensor ranks split, without gathering logits.

The largest sum of `logit / temperature` and Gumbel noise is at a token that is drawn from the softmax of
`logit / temperature` (Gumbel, 1954). So each rank finds the best of its own rows, and a maximum over ranks
decides.

Legend: T tokens of the packed micro-batch, t = T/tp tokens of this rank, H hidden, V vocabulary, v vocabulary
rows of this rank, n sequences.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from hydraulis.model.sequences import IGNORE_INDEX
from hydraulis.model.tensors import wide_dtype, wide_product
from hydraulis.parallel.collectives import all_gather_tokens
from hydraulis.parallel.vocabulary import VocabularyShare


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """The rule by which the next token is chosen, the same on every rank.

    Attributes:
        temperature: Divisor of the logits; 0 for the token with the largest logit.
        key: Number and names that seed the noise of one position, besides the sequence.
    """

    temperature: float
    key: str

    def scores(self, sequence: int, logits_v: Tensor, share: VocabularyShare) -> Tensor:
        """Return the score of each row in float64; the token with the largest score is chosen."""
        wide_v = logits_v.double()
        if self.temperature:
            noise_V = _gumbel_noise(f"{self.key}/{sequence}", share.size)
            own = noise_V[share.start : share.start + len(wide_v)]
            wide_v = wide_v / self.temperature + own.to(wide_v.device)
        # A maximum over ranks would not be defined.
        return wide_v.nan_to_num(nan=-torch.inf)


def best_tokens(
    hidden_tH: Tensor, weight_vH: Tensor, mark_T: Tensor, share: VocabularyShare, choice: TokenChoice
) -> Tensor:
    """Return the best next token of each marked sequence among this rank's rows, float64 [n, 3].

    The columns are the number of the sequence, the token's score and the token.

    Args:
        hidden_tH: Hidden states of this rank's tokens, after the final norm.
        weight_vH: Head rows of this rank, at least one.
        mark_T: Number of the sequence at the position whose next token is asked for, and `IGNORE_INDEX`
            elsewhere, int64.
        share: Position of `weight_vH` in the vocabulary.
        choice: Rule of the choice.
    """
    hidden_TH = all_gather_tokens(hidden_tH, share.group)
    places = (mark_T != IGNORE_INDEX).nonzero()[:, 0]
    wide = wide_dtype(hidden_TH.dtype)
    best = []
    for sequence, place in zip(mark_T[places].tolist(), places.tolist(), strict=True):
        logits_v = wide_product(hidden_TH[place : place + 1], weight_vH.T, wide)[0]
        score, row = choice.scores(sequence, logits_v, share).max(dim=0)
        best.append([float(sequence), float(score), float(share.start + int(row))])
    return torch.tensor(best, dtype=torch.float64).reshape(-1, 3)


def _gumbel_noise(key: str, size: int) -> Tensor:
    """Draw the noise of one position on the CPU, whose generator gives the same numbers on every rank."""
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
    generator = torch.Generator().manual_seed(seed >> 1)
    return torch.empty(size, dtype=torch.float64).exponential_(generator=generator).log_().neg_()
