"""Two processes of accelerate with our sampler; each writes its findings to a file.

    torchrun --nproc-per-node 2 accelerate_ranks.py FOLDER

The cases follow accelerate's `test_utils/scripts/test_distributed_data_loop.py`.
"""

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader

from batching.drawn import long_tail, sampler

LENGTHS = long_tail(100)


def prepared(accelerator: Accelerator, *, workers: int = 0, state: Any = None) -> tuple[Any, Any]:
    """Return our sampler, which continues a state if one is given, and accelerate's loader of it."""
    one = sampler(LENGTHS, ranks=accelerator.num_processes)
    if state is not None:
        one.load_state_dict(state)
    rows: Any = torch.arange(100)
    loader = DataLoader(rows, batch_sampler=one, collate_fn=torch.stack, num_workers=workers)
    return one, accelerator.prepare(loader)


def batches(loader: Any) -> list[list[int]]:
    """Read the loader to the end of its epoch."""
    return [batch.tolist() for batch in loader]


def joined(accelerator: Accelerator) -> list[list[int]]:
    """Train under `join_uneven_inputs`."""
    model: Any = accelerator.prepare(torch.nn.Linear(1, 1))
    found = []
    with accelerator.join_uneven_inputs([model]):
        for batch in prepared(accelerator)[1]:
            model(batch.float()[:, None]).sum().backward()
            found.append(batch.tolist())
    return found


def after_state_at(accelerator: Accelerator, workers: int = 0) -> list[list[int]]:
    """Continue in a new loader from the sampler's state at a step of another epoch."""
    one, _ = prepared(accelerator)
    one, loader = prepared(accelerator, workers=workers, state=one.state_at(2, epoch=3))
    loader.set_epoch(one.epoch)
    return batches(loader)


def after_loader_state(accelerator: Accelerator) -> list[list[int]]:
    """Continue in a new loader from the loader's state after three batches."""
    _, loader = prepared(accelerator)
    for done, _ in enumerate(loader, start=1):
        if done == 3:
            state = loader.state_dict()
            break
    _, second = prepared(accelerator)
    second.load_state_dict(state)
    return batches(second)


def main() -> None:
    """Write the findings of this process."""
    plain = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False))
    even = DataLoaderConfiguration(even_batches=True)
    stateful = DataLoaderConfiguration(even_batches=False, use_stateful_dataloader=True)
    found: dict[str, Any] = {
        "epochs": [batches(loader) for _, loader in [prepared(plain)] for _ in range(2)],
        "workers": batches(prepared(plain, workers=2)[1]),
        "pickled": batches(pickle.loads(pickle.dumps(prepared(plain)[1]))),
        "joined": joined(plain),
        "after_state_at": [after_state_at(plain), after_state_at(plain, 2)],
    }
    for name, configuration in (("even", even), ("stateful", stateful)):
        plain.dataloader_config = configuration
        found[name] = batches(prepared(plain)[1])
    found["after_loader_state"] = after_loader_state(plain)
    found["after_state_at"] += [after_state_at(plain), after_state_at(plain, 2)]
    Path(sys.argv[1], f"{plain.process_index}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
