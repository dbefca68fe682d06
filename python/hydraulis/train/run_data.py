"""The data of a run, the same on every rank: rank 0 indexes it, and every rank maps it."""

import dataclasses
import json
from collections.abc import Callable
from functools import partial

from hydraulis.config.data import DataConfig
from hydraulis.data.corpus import Corpus
from hydraulis.data.open import Datasets, make_datasets, open_sources
from hydraulis.data.sources.prepare import PreparedSource, prepare_sources
from hydraulis.data.sources.stdlib import StandardLibrary
from hydraulis.errors import HydraulisError
from hydraulis.runtime.agreement.comparison import check_same
from hydraulis.runtime.agreement.run_facts import data_facts
from hydraulis.runtime.ranks.every_rank import on_every_rank
from hydraulis.runtime.ranks.rank_zero import (
    corpus_from_rank_zero,
    from_rank_zero,
    from_rank_zero_unless_stopped,
)


def load_data(
    config: DataConfig, progress: Callable[[float], None], stop: Callable[[], bool]
) -> Datasets | None:
    """Build the missing indexes on rank 0, and map all of them on every rank. Collective.

    Args:
        config: Section `data` of the configuration.
        progress: Progress callback on rank 0, with the finished fraction of the indexes or of the library's
            files.
        stop: Returns whether the run should stop, the same on all ranks. Collective.

    Returns:
        The data sets; None if the run should stop. Finished parts of the indexes stay on disk.

    Raises:
        HydraulisError: A file, a record or the configuration is refused (see `prepare_sources` and
            `open_sources`), or ranks see different data (codes `index_damaged`, `ranks_differ`); on every
            rank.
    """
    if not config.sources:

        def load(alive: Callable[[], None]) -> Corpus:
            def report(done: int, of: int) -> None:
                progress(done / of)
                alive()

            return StandardLibrary.load(report)

        corpus = corpus_from_rank_zero(load)
        return _checked_same(on_every_rank(lambda: make_datasets(config, [[corpus]])))

    def make(alive: Callable[[], None]) -> str:
        def report(share: float) -> None:
            progress(share)
            alive()

        return json.dumps([dataclasses.asdict(source) for source in prepare_sources(config, report)])

    made = from_rank_zero_unless_stopped(make, stop)
    if made is None:
        return None
    prepared = [PreparedSource(**source) for source in json.loads(made)]
    data = on_every_rank(lambda: open_sources(config, prepared))
    for one in data.both:
        fingerprint = from_rank_zero(partial(getattr, one, "fingerprint"))
        on_every_rank(partial(_check_fingerprint, one.fingerprint, fingerprint))
    return _checked_same(data)


def _checked_same(data: Datasets) -> Datasets:
    """Return the data if all ranks read the same tokens. Collective."""
    check_same(data_facts(data.train), "put the data where every rank reads the same files")
    return data


def _check_fingerprint(seen: str, wanted: str) -> None:
    if seen != wanted:
        message = (
            f"the data of this node have fingerprint {seen[:16]}, and those of rank 0 {wanted[:16]}: put the "
            "files and data.index_directory where every node sees the same ones"
        )
        raise HydraulisError(message, code="index_damaged")
