"""The progress of each process counts, in any order of reading its answers."""

import os

from hydraulis.data.index.job import SharedProgress


def test_the_progress_of_all_processes_is_added_up() -> None:
    done = SharedProgress.create(3)
    assert done.total() == 0
    # As the processes do, which have the memory's number alone.
    seen = SharedProgress(os.dup(done.file))
    seen.write(2, 0.25)
    seen.write(0, 1.5)
    assert done.total() == 1.75
    seen.write(2, 2.0)
    assert done.total() == 3.5
    done.close()
    assert seen.total() == 3.5
    seen.close()
