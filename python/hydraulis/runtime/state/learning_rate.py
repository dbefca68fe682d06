"""The learning rate of each step."""

import math

from hydraulis.config.optimizer import OptimizerConfig


def learning_rate(config: OptimizerConfig, completed: int, steps: int) -> float:
    """Give the rate of the step after so many.

    The first step already trains: with `w` warm-up steps, step `i`, counted from 1, has `i / w` of the
    rate. From then on the share that is left of `learning_rate - min_learning_rate` is `1 - x` or
    `(1 + cos(pi x)) / 2`, where `x` is the part that is done of the steps in which the rate falls. The step
    after the last one would have the least rate.

    Args:
        config: the schedule.
        completed: steps that are done before it.
        steps: of the whole run.
    """
    if completed < config.warmup_steps:
        return config.learning_rate * (completed + 1) / config.warmup_steps
    lowered = config.learning_rate - config.min_learning_rate
    return config.min_learning_rate + lowered * _left(config, completed, steps)


def _left(config: OptimizerConfig, completed: int, steps: int) -> float:
    match config.schedule:
        case "constant":
            return 1.0
        case "cosine":
            return (1.0 + math.cos(math.pi * _done(config.warmup_steps, completed, steps))) / 2.0
        case "linear":
            return 1.0 - _done(config.warmup_steps, completed, steps)
        case "wsd":
            # Where the run is too short for both, the warm-up counts.
            return 1.0 - _done(max(config.warmup_steps, steps - config.decay_steps), completed, steps)


def _done(first: int, completed: int, steps: int) -> float:
    return min(max(completed - first, 0) / max(steps - first, 1), 1.0)
