"""The local shard has the size of its scheme, at first of the largest one."""

import pytest
import torch

from helpers import refused
from hydraulis import Scheme
from hydraulis._core import Position, local_slices
from hydraulis.config.kinds import ShardingKind
from hydraulis.config.model import ModelConfig
from hydraulis.runtime.pipeline.stage import cut_stage
from hydraulis.runtime.state.local_shard import LocalShard, largest_stage
from hydraulis.runtime.state.parameters import ModelParameters
from ranks import run_ranks
from runtime.state.local_shard_workers import Held, held_in_steps, reserved_in_turns
from small_model import build_decoder, slice_rows, small_config, split_dim

# Three layers on two stages: the second one has the head too, so the first has two of them.
STAGES = {1: [range(3)], 2: [range(2), range(2, 3)], 3: [range(1), range(1, 2), range(2, 3)]}


def stage_elements(config: ModelConfig, scheme: Scheme, stage: int, tensor_slice: int) -> int:
    """Count the parameters of a stage that was cut from a whole decoder."""
    decoder = build_decoder(config)
    last = stage == scheme.pp - 1
    cut_stage(decoder, STAGES[scheme.pp][stage], first=stage == 0, last=last)
    total = 0
    for name, parameter in decoder.named_parameters():
        rows = parameter.shape[split_dim(name, config)]
        total += parameter.numel() * len(slice_rows(name, rows, config, scheme.tp, tensor_slice)) // rows
    return total


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("text", ["<1>", "<tp2>", "<tp4>", "<pp2>", "<pp3>", "<tp2,pp2>", "<tp2,cp3,pp2>"])
def test_a_local_shard_has_the_elements_of_the_split_decoder(text: str, *, tied: bool) -> None:
    config = small_config(tie_word_embeddings=tied)
    parameters, scheme = ModelParameters.from_config(config), Scheme(text)
    for place in Position.all(scheme):
        held = sum(part.elements for part in local_slices(parameters.table, place))
        assert held == stage_elements(config, scheme, place.stage, place.tensor_slice)


@pytest.mark.parametrize(
    "schemes", [["<1>"], ["<tp4>"], ["<pp3>", "<tp2,pp2>"], ["<tp4>", "<cp8>"], ["<pp2>"]]
)
def test_buffers_are_as_large_as_the_schemes_largest_stage(schemes: list[str]) -> None:
    config = small_config()
    largest = {
        text: max(
            stage_elements(config, Scheme(text), place.stage, place.tensor_slice)
            for place in Position.all(Scheme(text))
        )
        for text in schemes
    }
    buffers = LocalShard(
        ModelParameters.from_config(config), [Scheme(text) for text in schemes], torch.float32
    )
    assert buffers.parameter.shape == buffers.gradient.shape == (min(largest.values()),)
    assert not buffers.parameter.any()
    assert not buffers.gradient.any()
    for text in schemes:
        buffers.fit(Scheme(text), [Scheme(text)])
        assert buffers.parameter.shape == buffers.gradient.shape == (largest[text],)
        assert buffers.parameter.dtype == buffers.gradient.dtype == torch.float32
        both = {flat.untyped_storage().data_ptr() for flat in (buffers.parameter, buffers.gradient)}
        assert len(both) == 2


def storage_bytes(buffers: LocalShard) -> int:
    return buffers.parameter.untyped_storage().nbytes() + buffers.gradient.untyped_storage().nbytes()


def test_a_rank_holds_the_bytes_of_its_own_scheme() -> None:
    wide, narrow = Scheme("<tp2>"), Scheme("<1>")
    parameters = ModelParameters.from_config(small_config())
    alone = {
        scheme: storage_bytes(LocalShard(parameters, [scheme], torch.bfloat16)) for scheme in (wide, narrow)
    }
    assert alone[wide] < 0.6 * alone[narrow]
    buffers = LocalShard(parameters, [wide, narrow], torch.bfloat16)
    assert buffers.least_gradients == largest_stage(parameters, wide).trained
    for own, others in ((wide, []), (narrow, [wide]), (narrow, []), (wide, [narrow])):
        buffers.fit(own, [own, *others])
        assert storage_bytes(buffers) == alone[own] == buffers.bytes_of(own)
        assert len(buffers.gradient) == len(buffers.parameter) == largest_stage(parameters, own).elements
        common = min(largest_stage(parameters, scheme).trained for scheme in (own, *others))
        assert buffers.common_gradients == common
    # A rank without work sends parameters from as much room as the others have in common.
    buffers.fit(None, [wide, narrow])
    assert (len(buffers.parameter), len(buffers.gradient)) == (0, buffers.common_gradients)


def test_ranks_of_one_step_hold_the_bytes_of_their_own_schemes() -> None:
    strategies = ["1x<tp2>+1x<1>", "3x<1>", "1x<tp2>", "1x<pp3>"]
    by_rank: list[list[Held]] = run_ranks(3, held_in_steps, strategies, [30, 20, 9])
    names = [[held.scheme for held in rank] for rank in by_rank]
    assert names == [["<tp2>", "<1>", "<tp2>", "<pp3>"]] * 2 + [["<1>", "<1>", "", "<pp3>"]]
    for held in (one for rank in by_rank for one in rank if one.scheme):
        assert held.bytes == held.of_scheme
    # A rank without work holds room for gradients alone, as a rank of the narrowest buffer has.
    parameters = ModelParameters.from_config(small_config())
    assert by_rank[2][2].bytes == 8 * largest_stage(parameters, Scheme("<tp2>")).trained
    assert by_rank[0][0].bytes < 0.6 * by_rank[2][0].bytes


def test_views_of_a_local_shard_stay_valid() -> None:
    wide, narrow = Scheme("<tp2>"), Scheme("<1>")
    buffers = LocalShard(ModelParameters.from_config(small_config()), [wide, narrow], torch.float32)
    buffers.fit(narrow, [narrow])
    views = [(buffers.parameter[3:5], [3, 4]), (buffers.parameter[-2:], [21382, 21383])]
    for own, valid in ((wide, 1), (narrow, 2), (wide, 1), (narrow, 2)):
        buffers.fit(own, [own])
        buffers.parameter.copy_(torch.arange(len(buffers.parameter)))
        for view, values in views[:valid]:
            assert view.tolist() == values
    buffers.fit(wide, [wide])
    assert not buffers.parameter.any()
    buffers.fit(narrow, [narrow])
    buffers.parameter.copy_(torch.arange(len(buffers.parameter)))
    # The values of a buffer that keeps its size stay.
    buffers.fit(narrow, [narrow, wide])
    assert [view.tolist() for view, _ in views] == [values for _, values in views]


def test_a_device_without_memory_for_a_scheme_leaves_empty_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, narrow = Scheme("<tp2>"), Scheme("<1>")
    buffers = LocalShard(ModelParameters.from_config(small_config()), [wide, narrow], torch.float32)
    resize, held, sizes = torch.UntypedStorage.resize_, storage_bytes(buffers), []

    # Half of the memory is the parameters' part: once the first request fails, once the second.
    for most in (held // 2, held):

        def limited(storage: torch.UntypedStorage, size: int, most: int = most) -> None:
            sizes.append(size)
            if size and size + storage_bytes(buffers) > most:
                raise torch.OutOfMemoryError
            resize(storage, size)

        sizes.clear()
        monkeypatch.setattr(torch.UntypedStorage, "resize_", limited)
        with pytest.raises(torch.OutOfMemoryError):
            buffers.fit(narrow, [narrow])
        # All memory was returned before any was requested, and no buffer is larger than its storage.
        assert sizes[:2] == [0, 0]
        assert storage_bytes(buffers) == buffers.parameter.nbytes + buffers.gradient.nbytes == 0
    monkeypatch.undo()
    buffers.fit(wide, [wide])
    assert storage_bytes(buffers) == held


@pytest.mark.parametrize("sharding", ["gradients", "parameters"])
def test_sharded_buffers_have_one_size(sharding: ShardingKind) -> None:
    wide, narrow = Scheme("<tp2>"), Scheme("<1>")
    parameters = ModelParameters.from_config(small_config())
    buffers = LocalShard(parameters, [wide, narrow], torch.float32, sharding=sharding)
    gradients, both = len(buffers.gradient), storage_bytes(buffers)
    buffers.fit(wide, [wide, narrow])
    assert len(buffers.gradient) == buffers.common_gradients == buffers.least_gradients == gradients
    if sharding == "parameters":
        assert storage_bytes(buffers) == both
    else:
        assert len(buffers.parameter) == largest_stage(parameters, wide).elements


@pytest.mark.parametrize(
    ("dtype", "gradient"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_gradients_are_kept_in_at_least_float32(dtype: torch.dtype, gradient: torch.dtype) -> None:
    buffers = LocalShard(ModelParameters.from_config(small_config()), [Scheme("<1>")], dtype)
    assert (buffers.parameter.dtype, buffers.gradient.dtype) == (dtype, gradient)


def test_more_stages_than_layers_are_refused() -> None:
    with refused("scheme_model_mismatch", 4, 3):
        LocalShard(ModelParameters.from_config(small_config()), [Scheme("<pp4>")], torch.float32)


@pytest.mark.gpu
def test_buffers_that_change_their_size_take_no_more_than_the_largest_step() -> None:
    # In a rank, whose allocator has expandable segments: without them it reserved a sixth more.
    ((largest, reserved),) = run_ranks(1, reserved_in_turns, device="cuda")
    assert reserved <= 1.05 * largest + 64 * 2**20
