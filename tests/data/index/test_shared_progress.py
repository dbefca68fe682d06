"""What each process has done counts, in whatever order their answers are read."""

import os

from hydraulis.data.index.shared_progress import SharedProgress


def test_what_all_have_done_is_added_up() -> None:
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
