"""Files of tensors have the permissions of any other new file."""

import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from hydraulis.runtime.checkpoint.tensor_file import write_tensors


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_the_umask_sets_the_permissions(tmp_path: Path, umask: int, mode: int) -> None:
    path = tmp_path / "state.safetensors"
    before = os.umask(umask)
    try:
        write_tensors(path, {"a": torch.arange(3)}, {"format": "pt"})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_tensor("a").tolist() == [0, 1, 2]
