"""Of a rank that is gone the others say what they know, and nothing else is taken for that."""

import pytest
import torch.distributed as dist

from hydraulis.runtime.ranks.liveness.lost_rank import is_lost, lost_rank

# As gloo of torch 2 says it.
CLOSED = (
    "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:6041. This is typically caused by a remote worker crashing. GLHF!"
)
SLOW = "[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 60000ms for recv operation to complete"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RuntimeError(CLOSED), "Connection closed by peer [127.0.0.1]:6041"),
        (RuntimeError(SLOW), "Timed out waiting 60000ms for recv operation to complete"),
        (
            dist.DistBackendError("NCCL error: remote process exited\nmore"),
            "NCCL error: remote process exited",
        ),
    ],
)
def test_a_closed_connection_is_a_lost_rank(error: Exception, why: str) -> None:
    assert is_lost(error)
    made = lost_rank(error, "go on from there")
    assert made.code == "lost_rank"
    assert f"lost another one ({why}): " in str(made)
    assert str(made).endswith("; go on from there")


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2 of gloo/transport/"), ValueError(CLOSED)])
def test_any_other_error_is_no_lost_rank(error: Exception) -> None:
    assert not is_lost(error)
