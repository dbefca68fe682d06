"""Hydraulis against plain data parallelism, on the CPU: the same model, batches, kernels and optimizer.

    python -m benches.ddp [--steps N] [--tokens N] [--longest N] [--strategies LIST] [--json FILE]

Ranks of one thread train a small decoder on the interpreter's own standard library, step by step in turns:
one step of Hydraulis, then the same global batch by torch's DistributedDataParallel, each in a model of its
own that begins with the same parameters. So both see the same noise of the machine, and their losses must
agree. Plain means arrival order: sequences are packed as they come until the next does not fit the cap, and
micro-batches go to ranks in turn; gradients are all-reduced with the last one's backward, every rank
steps all parameters. The cap is the one that Hydraulis plans <1> with; attention, loss and AdamW are the same
functions.

Wall: the clock of the slowest rank, barrier to barrier. CPU: seconds of all processes together, and of the
busiest process, which is what the wall would show with a core for each thread.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from benches.small_run import (
    LOSS_TOLERANCE,
    add_options,
    measured_profile,
    run_config,
    start_ranks,
    training_data,
)
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hydraulis import Cluster, CostProfile, Scheme, Strategy
from hydraulis.config.run import RunConfig
from hydraulis.data.collate import PackedMicroBatch, collate
from hydraulis.data.dataset import Dataset
from hydraulis.data.sampling.run_sampler import make_sampler
from hydraulis.model.decoder import Decoder
from hydraulis.model.parameters import checkpoint_name
from hydraulis.parallel.vocabulary import VocabularyShare, vocab_parallel_loss
from hydraulis.runtime.loop import iterations
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.ranks.distributed import joined
from hydraulis.runtime.ranks.stop import StopRequest
from hydraulis.runtime.records.metrics import StepMetrics
from hydraulis.runtime.state.parameters import InitialValues, ModelParameters
from hydraulis.runtime.state.sharded_optimizer import learning_rate
from hydraulis.runtime.worker import Worker

# Groups, stages and torch's own firsts: not what a run is made of.
WARM_UP = 2


class WholeModel(nn.Module):
    """A decoder with its loss, as DistributedDataParallel wants it."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        with torch.device("meta"):
            self.decoder = Decoder(config.model)
        parameters = ModelParameters.from_config(config.model)
        values = InitialValues(parameters, config.train.seed, torch.float32)
        for name, parameter in list(self.decoder.named_parameters()):
            value = parameters.view(values.read(name, 0, parameter.numel()), name).contiguous()
            owner, _, leaf = name.rpartition(".")
            setattr(self.decoder.get_submodule(owner), leaf, nn.Parameter(value))
        self._share = VocabularyShare(config.model.vocab_size, 0, None)

    def forward(self, batch: PackedMicroBatch, denominator: int) -> Tensor:
        """Give the micro-batch's share of the mean loss."""
        hidden_TH = self.decoder(batch.token_t, batch.sequences)
        assert self.decoder.lm_head is not None
        weight = self.decoder.lm_head.weight
        return vocab_parallel_loss(hidden_TH, weight, batch.target_t, denominator, self._share)


class PlainDataParallel:
    """DistributedDataParallel over micro-batches packed in arrival order."""

    def __init__(self, config: RunConfig, data: Dataset, cap: int) -> None:
        self._config, self._data, self._cap = config, data, cap
        self._sampler = make_sampler(config.data, data, config.train.seed)
        model = WholeModel(config)
        self._model = DistributedDataParallel(model)
        decayed: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in model.decoder.named_parameters():
            spared = any(fnmatchcase(checkpoint_name(name), pattern) for pattern in config.optimizer.no_decay)
            (others if spared else decayed).append(parameter)
        self._parameters = [*decayed, *others]
        self._adamw = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": config.optimizer.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            betas=config.optimizer.betas,
            eps=config.optimizer.eps,
            fused=True,
        )

    def step(self, step: int) -> float:
        """Train on the global batch of a step; give its mean loss."""
        documents = self._sampler.batch(step).sequences
        rank, world = dist.get_rank(), dist.get_world_size()
        mine = arrival_order(self._data.lengths[documents], self._cap, world)[rank]
        denominator = int(np.sum(self._data.target_counts[documents]))
        total = torch.zeros((), dtype=torch.float64)
        for number, sequences in enumerate(mine):
            batch = collate([self._data.read(int(documents[place])) for place in sequences], multiple=1)
            self._model.require_backward_grad_sync = number == len(mine) - 1
            loss = self._model(batch, denominator)
            # Gradients are averaged over ranks, and the loss is a sum over them.
            (loss * world).backward()
            total += loss.detach().double()
        dist.all_reduce(total)
        clip = self._config.optimizer.clip_norm
        torch.nn.utils.clip_grad_norm_(self._parameters, clip, foreach=False)
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate(self._config.optimizer, step, self._config.train.num_steps)
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=False)
        return float(total)


def arrival_order(lengths: npt.NDArray[np.int64], cap: int, ranks: int) -> list[list[list[int]]]:
    """Pack sequences as they come, and assign the micro-batches to ranks in turn.

    Returns:
        By rank, its micro-batches, each the places of its sequences in the batch.
    """
    micro_batches: list[list[int]] = [[]]
    filled = 0
    for place, length in enumerate(lengths):
        if filled + length > cap and micro_batches[-1]:
            micro_batches.append([])
            filled = 0
        micro_batches[-1].append(place)
        filled += int(length)
    assert len(micro_batches) >= ranks, "a batch has at least a micro-batch for each rank"
    return [micro_batches[rank::ranks] for rank in range(ranks)]


@dataclass(slots=True)
class Measured:
    """What steps of one way took, by step.

    Attributes:
        wall_s: Seconds from barrier to barrier.
        cpu_s: CPU seconds of all processes.
        busiest_s: CPU time of the busiest process.
        losses: Losses of the steps.
    """

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    busiest_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def take(self, step: Any) -> None:
        """Run a step, which gives its loss, and time it. Collective."""
        dist.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        loss = step()
        dist.barrier()
        own = torch.tensor([time.perf_counter() - wall, time.process_time() - cpu], dtype=torch.float64)
        most, total = own.clone(), own.clone()
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        dist.all_reduce(total)
        self.wall_s.append(most[0].item())
        self.cpu_s.append(total[1].item())
        self.busiest_s.append(most[1].item())
        self.losses.append(loss)

    def rates(self, tokens: Sequence[int]) -> dict[str, float]:
        """Give tokens a second by each clock, over the steps after the warm-up."""
        counted = sum(tokens[WARM_UP:])
        return {
            "tokens_per_wall_s": counted / sum(self.wall_s[WARM_UP:]),
            "tokens_per_cpu_s": counted / sum(self.cpu_s[WARM_UP:]),
            "tokens_per_busiest_s": counted / sum(self.busiest_s[WARM_UP:]),
        }


@dataclass(slots=True)
class Bench:
    """Both ways over the same batches."""

    hydraulis: Measured = field(default_factory=Measured)
    ddp: Measured = field(default_factory=Measured)
    metrics: list[StepMetrics] = field(default_factory=list)

    def run(self, config: RunConfig, data: Dataset, worker: Worker, planner: RunPlanner, cap: int) -> None:
        """Take turns until all steps are done. Collective."""
        plain = PlainDataParallel(config, data, cap)
        with StopRequest() as stop:
            steps = iterations(config, data, worker, planner, stop)
            for number in range(config.train.num_steps):
                self.hydraulis.take(lambda: self._planned(next(steps)))
                self.ddp.take(lambda number=number: plain.step(number))

    def _planned(self, iteration: Any) -> float:
        self.metrics.append(iteration.metrics)
        return float(iteration.metrics.loss)

    def summary(self) -> dict[str, Any]:
        """Sum up all but the first steps."""
        counted = self.metrics[WARM_UP:]
        tokens = [metrics.tokens for metrics in self.metrics]
        wall_ms = sum(metrics.wall_ms for metrics in counted)
        pairs = zip(self.hydraulis.losses, self.ddp.losses, strict=True)
        return {
            "tokens": tokens,
            "hydraulis": self.hydraulis.rates(tokens),
            "ddp": self.ddp.rates(tokens),
            "loss_difference": max(abs(mine / other - 1) for mine, other in pairs),
            "strategies": {
                name: sum(metrics.strategy == name for metrics in counted)
                for name in {metrics.strategy for metrics in counted}
            },
            "share_of_wall": {
                "planning": sum(metrics.plan_ms for metrics in counted) / wall_ms,
                "waiting_for_plans": sum(metrics.plan_wait_ms for metrics in counted) / wall_ms,
                "transfers": sum(metrics.transfer_ms for metrics in counted) / wall_ms,
                "new_groups": sum(metrics.groups_ms for metrics in counted) / wall_ms,
            },
            "median_plan_ms": statistics.median(metrics.plan_ms for metrics in counted),
            "wall_s": {"hydraulis": self.hydraulis.wall_s, "ddp": self.ddp.wall_s},
        }


def measure(arguments: argparse.Namespace) -> None:
    """Be one rank."""
    config = run_config(arguments, [text.strip() for text in arguments.strategies.split(";")])
    with joined(timedelta(seconds=120)) as rank:
        data = training_data(config)
        schemes = sorted({scheme for text in config.planner.strategies for scheme in Strategy(text).schemes})
        worker = Worker(config.model, config.optimizer, config.train, schemes=schemes)
        profile = measured_profile(config, worker, arguments.cap, arguments.profile_seconds)
        cluster = Cluster(dist.get_world_size(), dist.get_world_size())
        profile = with_cap(profile, arguments.cap, cluster)
        cap = profile.cap_tokens(Scheme("<1>"), cluster)
        planner = RunPlanner(config.planner, profile, cluster)
        bench = Bench()
        bench.run(config, data, worker, planner, cap)
        if rank == 0:
            report(bench.summary() | {"cap": cap, "settings": vars(arguments)}, arguments.json)


def with_cap(profile: CostProfile, cap: int, cluster: Cluster) -> CostProfile:
    """Give the profile of devices with so much memory that <1> admits a micro-batch of `cap` tokens."""
    document = json.loads(profile.to_json())
    (single,) = (entry for entry in document["schemes"] if entry["scheme"] == "<1>")
    memory = document["memory"]
    document["hardware"]["memory_bytes"] = (
        memory["reserved_bytes"]
        + -(-memory["optimizer_bytes"] // cluster.gpus)
        + single["resident_bytes"]
        + int((cap + 1) * single["activation_bytes_per_token"])
    )
    return CostProfile.from_json(json.dumps(document))


def report(summary: dict[str, Any], path: str) -> None:
    """Print a table, and write all of it where that was asked for."""
    row = "{:<11} {:>16} {:>16} {:>20}\n"
    sys.stdout.write(row.format("", "tokens/wall s", "tokens/CPU s", "tokens/busiest CPU s"))
    clocks = ("tokens_per_wall_s", "tokens_per_cpu_s", "tokens_per_busiest_s")
    for name in ("hydraulis", "ddp"):
        sys.stdout.write(row.format(name, *(f"{summary[name][clock]:,.0f}" for clock in clocks)))
    ratios = (summary["hydraulis"][clock] / summary["ddp"][clock] for clock in clocks)
    sys.stdout.write(row.format("ratio", *(f"{ratio:.3f}" for ratio in ratios)))
    shares = (f"{name.replace('_', ' ')} {share:.2%}" for name, share in summary["share_of_wall"].items())
    sys.stdout.write(f"of an iteration of hydraulis: {', '.join(shares)}\n")
    sys.stdout.write(f"median plan {summary['median_plan_ms']:.2f} ms; chosen: {summary['strategies']}\n")
    difference = summary["loss_difference"]
    sys.stdout.write(f"losses differ by {difference:.1e} at most\n")
    if path:
        Path(path).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    assert difference < LOSS_TOLERANCE, "both ways train the same model on the same tokens"


def parser() -> argparse.ArgumentParser:
    """Declare the options."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--steps", type=int, default=18)
    options.add_argument("--tokens", type=int, default=8192, help="of a global batch")
    options.add_argument("--longest", type=int, default=2048, help="tokens; longer sequences are cut")
    options.add_argument("--cap", type=int, default=2048, help="tokens of a micro-batch on one rank")
    options.add_argument("--strategies", default="2x<1>;1x<cp2>;1x<tp2>", metavar="LIST")
    options.add_argument("--ranks", type=int, default=2)
    add_options(options)
    return options


def main() -> int:
    """Start the ranks, or be one of them."""
    arguments = parser().parse_args()
    if arguments.as_rank:
        measure(arguments)
        return 0
    if arguments.steps <= WARM_UP or arguments.tokens < arguments.ranks * arguments.cap:
        parser().error(f"there must be more than {WARM_UP} steps, and a full micro-batch for each rank")
    return start_ranks("benches.ddp", arguments.ranks)


if __name__ == "__main__":
    sys.exit(main())
