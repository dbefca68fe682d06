"""Texts that the model continues at a step's end, by forwards through the whole pipeline.

A continuation has a place from the start: each sequence has its prompt's tokens, then zeros for the tokens to
come. Attention is causal, so a token depends on none behind it, and one plan and one gather of parameters
serve all tokens; sharded parameters come for each token. The loss mask marks the position that is predicted
next, and the token there is the number of the sequence; so the micro-batch's targets say on every rank, under
any degrees, whose next token is where.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hydraulis._core import Plan
from hydraulis.config.run import RunConfig
from hydraulis.data.tokenization.prompts import Prompts, decode_continuation, encode_prompts
from hydraulis.data.tokenization.tokenizer import load_tokenizer
from hydraulis.data.tokens import MaskedTokens
from hydraulis.parallel.next_token import TokenChoice
from hydraulis.runtime.batch import plan_on_rank_zero
from hydraulis.runtime.pipeline.forward_only import run_forward
from hydraulis.runtime.planning.run_planner import RunPlanner
from hydraulis.runtime.ranks.host_wait import wait_for_device
from hydraulis.runtime.ranks.rank_zero import from_rank_zero
from hydraulis.runtime.records.samples import SampledText, Samples
from hydraulis.runtime.worker import Worker


class GrowingSequences:
    """Prompts with the tokens that follow them so far.

    Args:
        prompts: Tokens of each prompt.
        most: Most tokens to add to each.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], most: int) -> None:
        self._tokens = [np.array([*prompt, *([0] * most)], dtype=np.int64) for prompt in prompts]
        self._starts = list(map(len, prompts))
        self._grown = 0

    def read(self, sequence: int) -> MaskedTokens:
        """Return a sequence with a mark at the position of its next token."""
        tokens = self._tokens[sequence].copy()
        mask = np.zeros(len(tokens), dtype=np.bool_)
        place = self._starts[sequence] + self._grown
        tokens[place], mask[place] = sequence, True
        return MaskedTokens(tokens, mask)

    def grow(self, tokens: Sequence[int]) -> None:
        """Add the next token of each sequence."""
        for sequence, token in enumerate(tokens):
            self._tokens[sequence][self._starts[sequence] + self._grown] = token
        self._grown += 1

    def continuations(self, eos: int | None) -> list[list[int]]:
        """Return the added tokens of each sequence before its first final one."""
        added = [
            tokens[start : start + self._grown].tolist()
            for tokens, start in zip(self._tokens, self._starts, strict=True)
        ]
        return [one[: one.index(eos)] if eos in one else one for one in added]

    def have_ended(self, eos: int | None) -> bool:
        """Whether every sequence has its final token."""
        return eos is not None and all(len(one) < self._grown for one in self.continuations(eos))


class TextSampler:
    """Continues the prompts of the configuration. Collective to create, if samples are configured.

    The same parameters give the same texts: noise depends on `train.seed`, the step, the prompt and the
    position alone.

    Args:
        config: Configuration of the run.
        worker: This rank's worker.
        planner: Planner of the prompts' batch; asked on rank 0 only.
    """

    def __init__(self, config: RunConfig, worker: Worker, planner: RunPlanner) -> None:
        self._config = config
        self._worker = worker
        self._planner = planner
        self._plan: Plan | None = None
        self._prompts = Prompts((), None)
        if config.samples.every is not None:
            # Other nodes may lack the tokenizer.
            self._prompts = Prompts.from_json(from_rank_zero(lambda: encode_prompts(config).to_json()))

    def after(self, step: int) -> Samples | None:
        """Continue all prompts if samples are due after `step` completed steps. Collective.

        They are due after the last step too.

        Raises:
            HydraulisError: The planner refuses the prompts, or its plan breaks a promise (code
                `plan_broken`).
        """
        if not self._config.train.is_due(self._config.samples.every, step):
            return None
        sequences = GrowingSequences(self._prompts.tokens, self._config.samples.tokens)
        if self._plan is None:
            self._plan = plan_on_rank_zero(self._made_plan)
        work = self._worker.prepare(self._plan, sequences.read)
        self._worker.redistribution.gather_parameters(self._plan)
        for position in range(self._config.samples.tokens):
            key = f"{self._config.train.seed}/{step}/{position}"
            choice = TokenChoice(self._config.samples.temperature, key)
            with self._worker.redistribution.forwards(self._plan, work.num_micro_batches):
                best = run_forward(work, choice)
            sequences.grow(self._agreed(best))
            if sequences.have_ended(self._prompts.eos):
                break
        found = sequences.continuations(self._prompts.eos)
        texts = from_rank_zero(partial(self._decoded, found))
        pairs = zip(self._config.samples.prompts, texts, strict=True)
        return Samples(step, tuple(SampledText(prompt, text) for prompt, text in pairs))

    def _made_plan(self) -> Plan:
        lengths = np.array([len(prompt) + self._config.samples.tokens for prompt in self._prompts.tokens])
        targets = np.ones_like(lengths)
        plan = self._planner.plan(lengths, targets)
        self._planner.check(plan, lengths, targets)
        return plan

    def _agreed(self, found: Sequence[Tensor]) -> list[int]:
        """Return each sequence's token with the largest score over all ranks; the lowest of equal ones."""
        device, count = self._worker.device, len(self._prompts.tokens)
        score = torch.full((count,), -torch.inf, dtype=torch.float64)
        token = torch.full((count,), torch.inf, dtype=torch.float64)
        for best in found:
            sequences = best[:, 0].long()
            score[sequences], token[sequences] = best[:, 1], best[:, 2]
        score, token = score.to(device), token.to(device)
        largest = score.clone()
        if dist.get_world_size() > 1:
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
            token[score < largest] = torch.inf
            dist.all_reduce(token, op=dist.ReduceOp.MIN)
        wait_for_device(device)
        return [int(one) for one in token.tolist()]

    def _decoded(self, continuations: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of the continuations."""
        tokenizer = load_tokenizer(self._config.data.tokenizer)
        pairs = zip(self._prompts.tokens, continuations, strict=True)
        return [decode_continuation(tokenizer, *pair) for pair in pairs]
