"""Checkpointed layers: bit-identical gradients, fewer saved bytes, and no expensive recomputation."""

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import refused
from hydraulis import Scheme
from hydraulis.config.kinds import CheckpointingKind
from hydraulis.model.sequences import PackedSequences, Sequences
from hydraulis.parallel.checkpointing import apply_checkpointing
from small_model import FAMILIES, build_decoder, random_tokens, small_config

LENGTHS = [9, 1, 30, 4]
KINDS: tuple[CheckpointingKind, ...] = get_args(CheckpointingKind)
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


class Operations(TorchDispatchMode):
    """Counts operations by kind."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own, through super()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts["attention"] += func is ATTENTION
        self.counts["products"] += func in PRODUCTS
        return func(*args, **(kwargs or {}))


class Shares:
    """Sequences that record the inputs and outputs of attention."""

    def __init__(self) -> None:
        self.packed = PackedSequences.from_lengths(LENGTHS, "cpu")
        self.storages: list[StorageWeakRef] = []

    @property
    def position_T(self) -> Tensor:  # noqa: N802  tensor names carry shape letters
        return self.packed.position_T

    def attend(self, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        o_TND = self.packed.attend(q_TND, k_TKD, v_TKD)
        self.storages += [StorageWeakRef(x.untyped_storage()) for x in (q_TND, k_TKD, v_TKD, o_TND)]
        return o_TND


class Mixing:
    """Sequences whose attention computes matrix products, which are no products of the layer."""

    position_T = torch.arange(sum(LENGTHS))

    def attend(self, q_TND: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        rows, columns = q_TND.flatten(1), (k_TKD + v_TKD).flatten(1)
        return (rows @ (columns.T @ rows)).view_as(q_TND)


def gradients(
    kind: str, sequences: Sequences | None = None, **changes: Any
) -> tuple[dict[str, Tensor], Counter[str]]:
    """Run forward and backward; return the parameters' gradients and the operations of backward."""
    config = small_config(**changes)
    model = build_decoder(config)
    apply_checkpointing(model, Scheme("<1>").with_checkpointing(kind))
    token_T, _ = random_tokens(config, LENGTHS, padded=False)
    output_TH = model(token_T, sequences or PackedSequences.from_lengths(LENGTHS, "cpu"))
    weight_TH = torch.linspace(-1, 1, output_TH.numel(), dtype=output_TH.dtype).view_as(output_TH)
    with Operations() as operations:
        output_TH.backward(weight_TH)
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: gradient for name, gradient in found.items() if gradient is not None}, operations.counts


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_do_not_change_by_a_bit(kind: CheckpointingKind, family: str) -> None:
    expected, _ = gradients("none", **FAMILIES[family])
    found, _ = gradients(kind, **FAMILIES[family])
    assert found.keys() == expected.keys()
    assert len(found) > 20
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name


def test_each_layer_has_its_own_kind() -> None:
    scheme = Scheme("<1>").with_checkpointing("selective,full:1/3")
    assert (str(scheme), scheme.checkpointing) == ("<1,selective,full:1/3>", "selective,full:1/3")
    assert [scheme.checkpointing_of(layer) for layer in range(3)] == ["selective", "selective", "full"]
    expected, _ = gradients("none")
    found, of_plan = gradients("selective,full:1/3")
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())
    (_, of_selective), (_, of_full) = (gradients(kind) for kind in ("selective", "full"))
    # One of the three layers computes its products again.
    assert (
        3 * (of_plan["products"] - of_selective["products"]) == of_full["products"] - of_selective["products"]
    )


@pytest.mark.parametrize("text", ["some", "full:3", "full:4/3", "full,selective:1/3", ""])
def test_other_checkpointing_is_refused(text: str) -> None:
    with refused("argument_invalid", f"'{text}'"):
        Scheme("<1>").with_checkpointing(text)


def test_products_inside_attention_are_not_counted_as_the_layers() -> None:
    changes = {"num_key_value_heads": 8}
    expected, without = gradients("none", Mixing(), **changes)
    found, selective = gradients("selective", Mixing(), **changes)
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())
    assert selective == without


@pytest.mark.parametrize("biased", [False, True])
def test_selective_computes_neither_attention_nor_a_product_again(*, biased: bool) -> None:
    changes = FAMILIES["every bias"] if biased else {}
    (_, none), (_, selective), (_, full) = (gradients(kind, **changes) for kind in KINDS[:3])
    layers = small_config().num_hidden_layers
    assert none["products"] == selective["products"] > 0
    assert (none["attention"], selective["attention"]) == (0, 0)
    # One attention per segment, and all linear maps except the last of the seven, which needs no saving.
    assert full["attention"] >= layers
    assert full["products"] == none["products"] + 6 * layers


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize(
    ("kind", "trained"),
    [(kind, True) for kind in KINDS] + [(kind, False) for kind in KINDS[1:]],
)
def test_saved_results_are_freed_after_backward_or_with_the_output(
    kind: CheckpointingKind, *, trained: bool
) -> None:
    config = small_config()
    model = build_decoder(config)
    apply_checkpointing(model, Scheme("<1>").with_checkpointing(kind))
    shares = Shares()
    output_TH = model(random_tokens(config, LENGTHS, padded=False)[0], shares)
    assert len(shares.storages) == 4 * config.num_hidden_layers
    # The tensors saved by attention exist, unless attention is recomputed; of copied layers the last stays.
    expired = ["full" in kind] * len(shares.storages)
    if kind == "offload":
        expired[:-4] = [True] * (len(expired) - 4)
    assert [storage.expired() for storage in shares.storages] == expired
    if trained:
        output_TH.sum().backward()
    del output_TH
    assert all(storage.expired() for storage in shares.storages)
