"""Workers of test_text_sampler.py."""

import dataclasses
from collections.abc import Sequence

import torch
import torch.distributed as dist

from hydraulis import Strategy
from hydraulis.config.kinds import ShardingKind
from hydraulis.config.run import RunConfig
from hydraulis.config.samples import SamplesConfig
from hydraulis.model.decoder import Decoder
from hydraulis.model.sequences import PackedSequences
from hydraulis.parallel.next_token import TokenChoice
from hydraulis.parallel.vocabulary import VocabularyShare
from hydraulis.runtime.records.samples import Samples
from hydraulis.runtime.text_sampler import TextSampler
from hydraulis.runtime.worker import Worker
from runtime.gathered import gather
from runtime.tiny import SEED, planner_for, run_config, train_config
from small_model import bind_parameters, logits_of

PROMPTS = ("ab", "the cat ")
TOKENS = 10
STEP = 5


def configured(strategies: Sequence[str], temperature: float = 0.0, eos: str = "") -> RunConfig:
    config = run_config(10, strategies)
    samples = SamplesConfig(every=STEP, prompts=PROMPTS, tokens=TOKENS, temperature=temperature)
    return dataclasses.replace(config, samples=samples, data=dataclasses.replace(config.data, eos_token=eos))


def sample(
    strategies: Sequence[str],
    temperature: float,
    sharding: ShardingKind = "none",
    frozen: tuple[str, ...] = (),
) -> tuple[list[Samples | None], list[str]]:
    """Sample under each strategy, and by a whole decoder on rank 0."""
    config = configured(strategies, temperature)
    schemes = sorted({scheme for text in strategies for scheme in Strategy(text).schemes})
    # Large initial values: the tokens of a continuation differ.
    model = dataclasses.replace(config.model, initializer_range=0.4)
    settings = train_config(dtype=torch.float64, seed=SEED, sharding=sharding, frozen=frozen)
    worker = Worker(model, config.optimizer, settings, schemes=schemes)
    before = worker.optimizer_shard.master.clone()
    found = [
        TextSampler(config, worker, planner_for(dist.get_world_size(), [text])).after(STEP)
        for text in strategies
    ]
    assert torch.equal(worker.optimizer_shard.master, before)
    master = gather(worker.optimizer_shard, worker.optimizer_shard.master)
    return found, [] if master is None else _continued(config, model_of(worker, master), temperature)


def model_of(worker: Worker, master: dict[str, torch.Tensor]) -> Decoder:
    with torch.device("meta"):
        model = Decoder(worker.parameters.config)
    bind_parameters(model, lambda name: master[name])
    return model


def _continued(config: RunConfig, model: Decoder, temperature: float) -> list[str]:
    texts = []
    for sequence, prompt in enumerate(PROMPTS):
        tokens = list(prompt.encode())
        for position in range(TOKENS):
            packed = PackedSequences.from_lengths([len(tokens)], torch.device("cpu"))
            with torch.no_grad():
                logits_V = logits_of(model, torch.tensor(tokens), packed)[-1]
            choice = TokenChoice(temperature, f"{config.train.seed}/{STEP}/{position}")
            scores = choice.scores(sequence, logits_V, VocabularyShare(len(logits_V), 0, None))
            tokens.append(int(scores.argmax()))
        texts.append(bytes(tokens[len(prompt) :]).decode(errors="replace"))
    return texts


def sample_until(eos: str) -> list[str]:
    """Sample greedily with a final token."""
    config = configured(["2x<1>"], eos=eos)
    model = dataclasses.replace(config.model, initializer_range=0.4)
    schemes = Strategy("2x<1>").schemes
    worker = Worker(model, config.optimizer, train_config(dtype=torch.float64, seed=SEED), schemes=schemes)
    samples = TextSampler(config, worker, planner_for(dist.get_world_size(), ["2x<1>"])).after(STEP)
    assert samples is not None
    return [one.text for one in samples.texts]


def due_steps(every: int | None) -> list[int]:
    """Return the steps of ten after which samples are made."""
    config = configured(["2x<1>"])
    config = dataclasses.replace(config, samples=dataclasses.replace(config.samples, every=every, tokens=1))
    schemes = Strategy("2x<1>").schemes
    worker = Worker(config.model, config.optimizer, train_config(dtype=torch.float32), schemes=schemes)
    sampler = TextSampler(config, worker, planner_for(dist.get_world_size(), ["2x<1>"]))
    found = [sampler.after(step) for step in range(1, 11)]
    return [one.step for one in found if one is not None]
