"""Indexing a large data set: throughput, memory, and what a kill in the middle costs.

    python benches/indexing.py [--documents N] [--processes P] [--tokenizer FILE|FOLDER]

Documents of English-like words, of lengths with a long tail (median 150 bytes, sigma 1), one per line of a
`.jsonl` file. The build is killed when half is done, and started again; then the index is mapped and a plan's
worth of documents is read. Memory is the greatest resident set of the building process, and of the largest
process that tokenises; what is mapped is not built in memory. CPU seconds are those of all processes.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from hydraulis.data.index.builder import ensure_index
from hydraulis.data.index.files import complete_extent, open_index, partial_extent
from hydraulis.data.index.job import IndexJob
from hydraulis.data.sampling.sampler import BatchSampler

WORDS = "harbour the of a winter seven lamp and keeps under stones is quietly measured by rope for all"


def write_documents(path: Path, documents: int) -> None:
    """Draw the documents from one long text."""
    rng = np.random.default_rng(0)
    text = " ".join(rng.choice(WORDS.split(), 20_000))
    lengths = rng.lognormal(np.log(150), 1.0, documents).astype(int).clip(2, 60_000)
    starts = rng.integers(0, len(text) - 60_000, documents)
    with path.open("w", encoding="utf-8") as file:
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            file.write(json.dumps({"text": text[start : start + length]}) + "\n")


def job_of(path: Path, tokenizer: str) -> IndexJob:
    """Make the job of a file."""
    return IndexJob(
        paths=(path,),
        format="text",
        fields=("text",),
        tokenizer=tokenizer,
        chat_template="",
        eos_token="",
        broken_records="refuse",
    )


def build(path: Path, tokenizer: str, processes: int, until: float) -> None:
    """Build the index, and kill this process when so much is done; print what it took otherwise."""

    def progress(share: float) -> None:
        if share > until:
            os.kill(os.getpid(), signal.SIGKILL)

    ensure_index(job_of(path, tokenizer), path.parent / "index", processes, progress)
    own, workers = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu_s = own.ru_utime + own.ru_stime + workers.ru_utime + workers.ru_stime
    # Not ru_maxrss, which a new program takes over from the one that started it.
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    own_mb = next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM"))
    sys.stdout.write(json.dumps([cpu_s, own_mb, workers.ru_maxrss / 1e3]) + "\n")


def attempt(path: Path, arguments: argparse.Namespace, until: float) -> tuple[float, str]:
    """Build in a process of its own; return how long it took and what it printed."""
    command = [sys.executable, __file__, "--build", str(path), "--until", str(until)]
    command += ["--processes", str(arguments.processes), "--tokenizer", arguments.tokenizer]
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return time.perf_counter() - start, done.stdout


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--processes", type=int, default=2, metavar="P")
    parser.add_argument("--tokenizer", default="bytes", metavar="FILE|FOLDER")
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.build is not None:
        build(arguments.build, arguments.tokenizer, arguments.processes, arguments.until)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "documents.jsonl")
        write_documents(path, arguments.documents)
        report(path, arguments)


def report(path: Path, arguments: argparse.Namespace) -> None:
    """Build in two attempts, read, and say what it took."""
    index = path.parent / "index" / job_of(path, arguments.tokenizer).key()[:16]
    first_s, _ = attempt(path, arguments, until=0.5)
    # A build of a second or two has written no journal yet.
    partial = partial_extent(index)
    kept = 0 if partial is None else partial.documents
    second_s, printed = attempt(path, arguments, until=2.0)
    second_cpu_s, own_mb, worker_mb = json.loads(printed)
    extent = complete_extent(index)
    assert extent is not None  # the second attempt went to its end
    start = time.perf_counter()
    corpus = open_index(index)
    documents = BatchSampler(corpus.lengths, 500_000, 0).batch(0).sequences
    for document in documents:
        corpus.read(int(document))
    read_s = time.perf_counter() - start
    share = 1 - kept / extent.documents
    size_mb = path.stat().st_size / 1e6
    sys.stdout.write(
        f"{extent.documents:,} documents, {size_mb:,.0f} MB, {extent.tokens:,} tokens with "
        f"{arguments.processes} processes: killed at half after {first_s:.1f} s, with {1 - share:.1%} kept; "
        f"the rest in {second_s:.1f} s ({second_cpu_s:.1f} s CPU): {share * size_mb / second_cpu_s:.1f} MB "
        f"and {share * extent.documents / second_cpu_s:,.0f} documents per CPU second; {own_mb:,.0f} MB, "
        f"and {worker_mb:,.0f} MB in a process; mapped, and a batch of {len(documents):,} read, in "
        f"{1e3 * read_s:.0f} ms\n"
    )


if __name__ == "__main__":
    main()
