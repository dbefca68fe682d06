"""The facts of a run that must be the same on all ranks: installed files, configuration and data."""

import functools
import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

import hydraulis
from hydraulis.config.run import RunConfig, to_dict
from hydraulis.data.dataset import SequenceSource
from hydraulis.runtime.agreement.step_digest import tokens_digest

NODE_KEYS = ("index_directory", "index_processes")
"""Keys of the section `data` that determine where and how an index is built, not its content; they may
depend on the node."""
# Number of sequences whose tokens are compared.
_NUM_SAMPLED = 64

REMEDY = "start every rank with the same command, files and packages"


def run_facts(config: RunConfig) -> Mapping[str, object]:
    """Return versions, configuration, and the files of the initial parameters."""
    settings = {
        f"{section}.{key}": value
        for section, table in to_dict(config).items()
        for key, value in table.items()
        if not (section == "data" and key in NODE_KEYS)
    }
    folder = Path(config.checkpoint.weights)
    weights = sorted(folder.glob("*.safetensors")) if config.checkpoint.weights else []
    return {
        "the version of hydraulis": version("hydraulis"),
        "the version of torch": torch.__version__,
        "the version of numpy": np.__version__,
        "the digest of the installed files of hydraulis": _digest_of_package(),
        **settings,
        **{f"the bytes of {file.name}": file.stat().st_size for file in weights},
    }


def data_facts(data: SequenceSource) -> Mapping[str, object]:
    """Return the size of the training data, and a digest of evenly spread sequences."""
    number = len(data.lengths)
    sampled = sorted({index * (number - 1) // max(1, _NUM_SAMPLED - 1) for index in range(_NUM_SAMPLED)})
    return {
        "the number of training sequences": number,
        "the number of training tokens": int(data.lengths.sum()),
        **{f"the digest of sequence {index}": tokens_digest(data.read(index)) for index in sampled},
    }


@functools.cache
def _digest_of_package() -> str:
    """Return a digest of the package's modules, the native one included."""
    folder, digest = Path(hydraulis.__file__).parent, hashlib.blake2b(digest_size=8)
    for file in sorted([*folder.rglob("*.py"), *folder.glob("_core*.so"), *folder.glob("_core*.pyd")]):
        digest.update(file.relative_to(folder).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
