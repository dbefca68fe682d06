"""Packing a large data set into windows: time, memory and windows over the lower bound.

    python benches/packing.py [--sequences N] [--window L]

Lengths of median 1,500 and sigma 1.2 clipped at the window, in a memory-mapped file of int32. The memory is
the peak during the packing, seen by a thread every millisecond, less what was held before; it counts the
result. Times are the least of three runs.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hydraulis import pack_windows


def write_lengths(path: Path, sequences: int, window: int) -> None:
    """Draw the lengths piece by piece, so that the peak before the packing is low."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.int32, shape=(sequences,))
    rng = np.random.default_rng(0)
    for start in range(0, sequences, 1 << 18):
        drawn = rng.lognormal(np.log(1_500), 1.2, min(1 << 18, sequences - start))
        array[start : start + drawn.size] = drawn.round().clip(1, window)
    array.flush()


def own_memory_mb() -> float:
    """Memory of the process that belongs to no file, which is how the lengths are mapped."""
    fields = dict(
        line.split(":") for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    )
    return int(fields["RssAnon"].split()[0]) * 1024 / 1e6


def growth_mb(work: Callable[[], object]) -> float:
    """Peak of the process's memory during some work, above what it held before."""
    before = own_memory_mb()
    seen = [before]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            seen.append(own_memory_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return max(seen) - before


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=10_000_000, metavar="N")
    parser.add_argument("--window", type=int, default=32_768, metavar="L")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lengths.npy")
        write_lengths(path, arguments.sequences, arguments.window)
        lengths = np.load(path, mmap_mode="r")
        grown = growth_mb(lambda: pack_windows(lengths, window_tokens=arguments.window))
        wall_s, cpu_s = float("inf"), float("inf")
        for _ in range(3):
            start, cpu = time.perf_counter(), time.thread_time()
            windows = pack_windows(lengths, window_tokens=arguments.window)
            wall_s, cpu_s = min(wall_s, time.perf_counter() - start), min(cpu_s, time.thread_time() - cpu)
    sys.stdout.write(
        f"{arguments.sequences:,} sequences, {len(windows):,} windows of {arguments.window:,} tokens: "
        f"{len(windows) / windows.lower_bound:.6f} of the lower bound, fill {windows.fill:.6f}, "
        f"{wall_s:.2f} s ({cpu_s:.2f} s CPU), {grown:.0f} MB\n"
    )


if __name__ == "__main__":
    main()
