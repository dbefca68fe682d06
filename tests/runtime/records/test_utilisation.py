"""The share of the devices' peak."""

import pytest

from hydraulis.model.flops import training_flops
from hydraulis.runtime.records.utilisation import Utilisation
from small_model import small_config


def test_utilisation_is_needed_over_possible_operations() -> None:
    config = small_config()
    flops = training_flops(config, 100, 4_000)
    # In half a second two ranks of a TFLOP/s could do 1e12 operations.
    assert Utilisation(config, 2, 1.0).of(100, 4_000, 500.0) == pytest.approx(flops / 1e12)


def test_a_shared_device_counts_once() -> None:
    alone, shared = Utilisation(small_config(), 1, 1.0), Utilisation(small_config(), 8, 1.0, 8)
    assert shared.of(100, 4_000, 500.0) == alone.of(100, 4_000, 500.0)


def test_without_a_peak_there_is_no_utilisation() -> None:
    assert Utilisation(small_config(), 2, None).of(100, 4_000, 500.0) is None
