"""Two processes of transformers' `Trainer` with our sampler; each writes its findings to a file.

    torchrun --nproc-per-node 2 transformers_ranks.py FOLDER

The cases follow transformers' `batch_rebalance_ddp.py` and `test_trainer_distributed_loss.py`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from peers.test_transformers_trainer import LENGTHS, Recorder, StopAt, make_trainer


def losses(trainer: Recorder) -> list[float]:
    """Return the logged loss of each step."""
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


def mean_loss(trainer: Recorder) -> float:
    """Compute the mean loss over the targets of all ranks in the first step, sequence by sequence."""
    model: Any = trainer.model
    sampler: Any = trainer._get_train_sampler()
    step = sampler.balanced.step(0)
    total = 0.0
    with torch.no_grad():
        for index in (i for rank in step.micro_batches for part in rank for i in part.tolist()):
            tokens = torch.full((1, int(LENGTHS[index])), index + 1)
            if tokens.numel() > 1:
                total += float(model(tokens, labels=tokens).loss) * (tokens.numel() - 1)
    return total / float(step.targets)


def main() -> None:
    """Write the findings of this process."""
    folder = Path(sys.argv[1])
    trainer = make_trainer(folder / "whole", barrier="step")
    shard: Any = trainer.get_train_dataloader().batch_sampler
    found: dict[str, Any] = {
        "shard": [type(shard).__name__, shard.num_processes, type(shard.batch_sampler).__name__],
        "mean_loss": mean_loss(trainer),
    }
    trainer.train()
    found |= {"seen": trainer.seen, "losses": losses(trainer), "resumed_seen": [], "resumed_losses": []}
    sampler: Any = trainer._get_train_sampler()
    # Inside the first epoch, and inside the second.
    for stop in (2, sampler.balanced.num_steps + 2):
        first = make_trainer(folder / f"stopped-{stop}", barrier="step")
        first.add_callback(StopAt(stop))
        first.train()
        second = make_trainer(folder / f"stopped-{stop}", barrier="step")
        second.train(resume_from_checkpoint=True)
        found["resumed_seen"].append(first.seen + second.seen)
        found["resumed_losses"].append(losses(second))
    (folder / f"{trainer.args.process_index}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
