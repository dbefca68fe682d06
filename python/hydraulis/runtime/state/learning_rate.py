"""The learning rate of each step."""

import math

from hydraulis.config.optimizer import OptimizerConfig


def learning_rate(config: OptimizerConfig, completed: int, steps: int) -> float:
    """Return the learning rate of the step after `completed` steps.

    The first step already trains: with `w` warm-up steps, step `i`, counted from 1, has `i / w` of the rate.
    After them the rate falls from `learning_rate` to `min_learning_rate`: by the factor `1 - x` of their
    difference, or `(1 + cos(pi x)) / 2`, where `x` is the fraction of the decaying steps before this one. A
    step after the last one would have `min_learning_rate`.

    Args:
        config: The schedule.
        completed: Number of steps before this one.
        steps: Number of steps of the whole run.
    """
    if completed < config.warmup_steps:
        return config.learning_rate * (completed + 1) / config.warmup_steps
    lowered = config.learning_rate - config.min_learning_rate
    return config.min_learning_rate + lowered * _remaining(config, completed, steps)


def _remaining(config: OptimizerConfig, completed: int, steps: int) -> float:
    match config.schedule:
        case "constant":
            return 1.0
        case "cosine":
            return (1.0 + math.cos(math.pi * _progress(config.warmup_steps, completed, steps))) / 2.0
        case "linear":
            return 1.0 - _progress(config.warmup_steps, completed, steps)
        case "wsd":
            # In a run too short for warm-up and decay, the warm-up takes precedence.
            return 1.0 - _progress(max(config.warmup_steps, steps - config.decay_steps), completed, steps)


def _progress(first: int, completed: int, steps: int) -> float:
    return min(max(completed - first, 0) / max(steps - first, 1), 1.0)
