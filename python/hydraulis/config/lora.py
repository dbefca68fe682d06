"""The section `lora`: trained adapters of low rank on the linear maps of a frozen base model."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from hydraulis.config.check import check_above, check_at_least, check_not_empty
from hydraulis.errors import InvalidInputError

AdapterTarget: TypeAlias = Literal[
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
]
"""Linear map of a decoder layer, by the name that PEFT has for it."""

TARGETS: tuple[AdapterTarget, ...] = get_args(AdapterTarget)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """Adapters of a model: `y = W x + (alpha / rank) B A x` for each linear map among the targets.

    Attributes:
        rank: Rows of every A and columns of every B.
        alpha: Numerator of the scaling.
        targets: Names of the adapted linear maps, each once, in the order of `TARGETS`.
    """

    rank: int
    alpha: float
    targets: tuple[AdapterTarget, ...]

    @property
    def scaling(self) -> float:
        """The factor of `B A x`."""
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """LoRA (Hu et al., 2021): only the adapters are trained; all parameters of the base model are frozen.

    Attributes:
        rank: Rank of the adapters; 0 or absent for training without adapters.
        alpha: Numerator of the adapters' scaling `alpha / rank`; needed with a rank.
        targets: Adapted linear maps of every layer, by PEFT's names.
        dropout: Share of an adapter's inputs that is dropped; 0 is the only value.
    """

    rank: int | None = None
    alpha: float | None = None
    targets: tuple[AdapterTarget, ...] = TARGETS
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.rank is None and self.alpha is not None:
            message = f"lora.alpha = {self.alpha:g} needs lora.rank; set it, such as to 16, or to 0 for none"
            raise InvalidInputError(message, code="config_value")
        if self.rank is not None:
            check_at_least("lora.rank", self.rank, 0)
            # 0 cancels the value of a file.
            object.__setattr__(self, "rank", self.rank or None)
        if self.alpha is not None:
            check_above("lora.alpha", self.alpha, 0)
        check_not_empty("lora.targets", self.targets, "['q_proj', 'v_proj']")
        object.__setattr__(self, "targets", tuple(name for name in TARGETS if name in self.targets))
        if self.dropout != 0:
            message = (
                f"lora.dropout = {self.dropout} must be 0: a recomputed layer would drop other inputs; "
                "set it to 0 or leave it out"
            )
            raise InvalidInputError(message, code="config_value")
        if self.rank is not None and self.alpha is None:
            message = (
                f"lora.rank = {self.rank} needs lora.alpha, because alpha / rank scales the adapters; set "
                f"it, such as to {2 * self.rank}"
            )
            raise InvalidInputError(message, code="config_value")

    @property
    def adapters(self) -> Adapters | None:
        """The adapters of the model; None without a rank."""
        if self.rank is None or self.alpha is None:
            return None
        return Adapters(rank=self.rank, alpha=self.alpha, targets=self.targets)
