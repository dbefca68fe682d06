"""How much of the devices' peak a step uses (model FLOP utilisation, MFU)."""

from dataclasses import dataclass

from hydraulis.config.model import ModelConfig
from hydraulis.model.flops import training_flops


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Tells the share of the peak, where the peak is known.

    Attributes:
        model: its shape.
        ranks: of the cluster, those without work included.
        peak_tflops: of one of them; None if it is not known.
    """

    model: ModelConfig
    ranks: int
    peak_tflops: float | None

    def of(self, tokens: int, squares: int, wall_ms: float) -> float | None:
        """Give the share of the peak that a step used, None if the peak is not known.

        Args:
            tokens: of the global batch, padding not counted.
            squares: the sum of its squared lengths.
            wall_ms: of the step.
        """
        if self.peak_tflops is None:
            return None
        flops = training_flops(self.model, tokens, squares)
        return flops / (1e-3 * wall_ms * self.ranks * 1e12 * self.peak_tflops)
