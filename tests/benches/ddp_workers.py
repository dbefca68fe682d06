"""What the ranks of test_ddp.py do: all of it, but for joining the group and reading the corpus."""

import contextlib
import io
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist

from benches.loading import load_script
from hydraulis.data.corpus import Corpus
from hydraulis.data.sources.stdlib import StandardLibrary
from runtime.tiny import made_up_corpus

OPTIONS = "--steps 3 --tokens 300 --longest 64 --cap 64 --hidden 16 --strategies 2x<1> --profile-seconds 0.1"


def compared(path: str) -> str:
    bench = load_script("ddp")
    setattr(bench, "joined", _joined)  # noqa: B010
    setattr(StandardLibrary, "load", _load)  # noqa: B010
    arguments = [*OPTIONS.split(), "--json", path]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        bench.measure(bench.parser().parse_args(arguments))
    return out.getvalue()


@contextlib.contextmanager
def _joined(_timeout: timedelta) -> Iterator[int]:
    yield dist.get_rank()


def _load(_progress: object = None) -> Corpus:
    return made_up_corpus(256)
