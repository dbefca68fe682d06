"""The refusals of a step that is not finite."""

import math

import pytest

from helpers import refused
from hydraulis.runtime.step_checks import check_loss, check_norm


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_refused(loss: float) -> None:
    with refused("loss_not_finite", "step 7", loss, "optimizer.learning_rate"):
        check_loss(loss, 7)
    # Before any update no learning rate is the cause.
    with refused("loss_not_finite", "step 1", loss, "model.path"):
        check_loss(loss, 1)
    check_loss(1e30, 7)


@pytest.mark.parametrize("norm", [math.inf, math.nan])
def test_a_gradient_without_a_finite_norm_is_refused(norm: float) -> None:
    with refused("gradient_not_finite", "step 7", norm, "optimizer.learning_rate"):
        check_norm(norm, 7)
    check_norm(1e300, 7)
