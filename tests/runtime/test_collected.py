import gc

import pytest

from hydraulis.runtime.collected import frozen_objects


def test_objects_are_frozen_while_the_context_lasts_also_if_it_fails() -> None:
    gc.unfreeze()  # what other libraries froze, such as mypy
    with frozen_objects():
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0
    with pytest.raises(ZeroDivisionError), frozen_objects():
        raise ZeroDivisionError
    assert gc.get_freeze_count() == 0
