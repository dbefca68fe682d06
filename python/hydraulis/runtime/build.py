"""The worker of a run as it begins: its parameters drawn by the seed, of a model, or of a checkpoint."""

from collections.abc import Sequence
from pathlib import Path

from hydraulis._core import Scheme
from hydraulis.config.run import RunConfig
from hydraulis.runtime.checkpoint.resume import ResumedRun, restore_moments
from hydraulis.runtime.hugging_face.weights import HuggingFaceWeights
from hydraulis.runtime.ranks.every_rank import on_every_rank
from hydraulis.runtime.ranks.rank_zero import on_rank_zero
from hydraulis.runtime.state.initial_values import ParameterValues
from hydraulis.runtime.state.parameters import ModelParameters
from hydraulis.runtime.worker import Worker


def begin(config: RunConfig, schemes: Sequence[Scheme], resumed: ResumedRun | None) -> Worker:
    """Make the worker of this rank. Collective.

    Args:
        config: of the run.
        schemes: every scheme that a plan of the run may use.
        resumed: the run to go on with, checked; None to begin anew.

    Raises:
        HydraulisError: the model cannot be cut by one of the schemes, or what the parameters are read from is
            not whole; on every rank.
    """
    if resumed is None:
        return _anew(config, schemes)
    with resumed.reader() as reader:
        worker = _make(config, schemes, reader)
        on_every_rank(lambda: restore_moments(reader, worker.shares))
    worker.home.optimizer.resume(resumed.manifest.step)
    return worker


def _anew(config: RunConfig, schemes: Sequence[Scheme]) -> Worker:
    if not config.checkpoint.weights:
        return _make(config, schemes, None)
    folder, parameters = Path(config.checkpoint.weights), ModelParameters.of(config.model)
    with on_every_rank(lambda: HuggingFaceWeights(folder, parameters)) as weights:
        on_rank_zero(weights.check)
        return _make(config, schemes, weights)


def _make(config: RunConfig, schemes: Sequence[Scheme], values: ParameterValues | None) -> Worker:
    return Worker(config.model, config.optimizer, config.train, schemes=schemes, values=values)
