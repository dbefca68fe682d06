"""Computes the model FLOP utilisation (MFU) of a step."""

from dataclasses import dataclass

from hydraulis.config.model import ModelConfig
from hydraulis.model.flops import training_flops


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Computes the share of the devices' peak FLOP/s that the model's operations use.

    Attributes:
        model: The model's configuration.
        ranks: Ranks of the cluster, including those without work.
        peak_tflops: Peak of one device, in TFLOP/s; None if it is not known.
        ranks_per_device: Ranks that share one device.
    """

    model: ModelConfig
    ranks: int
    peak_tflops: float | None
    ranks_per_device: int = 1

    def of(self, tokens: int, squares: int, wall_ms: float) -> float | None:
        """Return the MFU of a step, between 0 and 1; None if the peak is not known.

        Args:
            tokens: Tokens of the global batch, without padding.
            squares: Sum of the squared sequence lengths.
            wall_ms: Wall time of the step, in milliseconds.
        """
        if self.peak_tflops is None:
            return None
        flops = training_flops(self.model, tokens, squares)
        devices = self.ranks / self.ranks_per_device
        return flops / (1e-3 * wall_ms * devices * 1e12 * self.peak_tflops)
