"""Functions that the ranks of test_tensor.py run."""

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

from hydraulis.config.model import ModelConfig
from hydraulis.model.decoder import Decoder
from hydraulis.model.parameters import master_parameter_name
from hydraulis.model.sequences import PackedSequences
from hydraulis.parallel.groups import ProcessGroups
from hydraulis.parallel.tensor import apply_tensor_parallel, split_range
from hydraulis.parallel.vocabulary import VocabularyShare, vocab_parallel_loss
from hydraulis.runtime.pipeline.stage import cut_stage
from hydraulis.runtime.ranks.device import tensor_backend_of
from ranks import own_device
from small_model import bind_parameters, build_decoder, count_targets, random_tokens, slice_rows, split_dim


def loss_and_gradients(
    config: ModelConfig, lengths: Sequence[int], num_stages: int
) -> tuple[float, dict[str, Tensor]]:
    """Run one micro-batch on a tensor group of all ranks, its stages one after the other on each rank.

    Returns:
        The loss, and this rank's gradients by master parameter name.
    """
    tensor_rank, tp = dist.get_rank(), dist.get_world_size()
    device = own_device()
    groups = ProcessGroups(timedelta(seconds=60), tensor_backend_of(device))
    groups.ensure([range(tp)])
    group = groups.get(range(tp))
    token_T, target_T = (drawn.to(device) for drawn in random_tokens(config, lengths, padded=True))
    sequences = PackedSequences.from_lengths(lengths, device)
    stages = [
        sliced_stage(config, stage, num_stages, tensor_rank, tp).to(device) for stage in range(num_stages)
    ]

    x = token_T
    for stage in stages:
        apply_tensor_parallel(stage, group, tensor_rank, tp)
        x = stage(x, sequences)
    share = VocabularyShare(config.vocab_size, split_range(config.vocab_size, tp, tensor_rank).start, group)
    head = stages[-1].lm_head
    assert head is not None
    loss = vocab_parallel_loss(x, head.weight, target_T, count_targets(target_T), share)
    loss.backward()
    return loss.item(), master_gradients(stages)


def sliced_stage(config: ModelConfig, stage: int, num_stages: int, tensor_rank: int, tp: int) -> Decoder:
    model = build_decoder(config)
    layers = split_range(config.num_hidden_layers, num_stages, stage)
    cut_stage(model, layers, first=stage == 0, last=stage == num_stages - 1)
    full = dict(model.named_parameters())

    def own_slice(name: str) -> Tensor:
        value, dim = full[name].detach(), split_dim(name, config)
        rows = slice_rows(name, value.shape[dim], config, tp, tensor_rank)
        return value.narrow(dim, rows.start, len(rows)).clone()

    bind_parameters(model, own_slice)
    return model


def master_gradients(stages: Sequence[Decoder]) -> dict[str, Tensor]:
    gradient: dict[str, Tensor] = {}
    for stage in stages:
        for name, parameter in stage.named_parameters():
            assert parameter.grad is not None, name
            master_name = master_parameter_name(name, stage.config)
            known = gradient.get(master_name)
            gradient[master_name] = parameter.grad if known is None else known + parameter.grad
    return gradient
