"""Offloaded layers: the order of their copies, and what is on the device and in host memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from hydraulis import Scheme
from hydraulis.model.sequences import PackedSequences
from hydraulis.parallel.checkpointing import apply_checkpointing
from hydraulis.parallel.offload import HostCopies, HostPages
from small_model import build_decoder, random_tokens, small_config

CPU = torch.device("cpu")
LENGTHS = [9, 1, 30, 4]
LAYERS = 4


class Recorded:
    """A queue that records when copies are issued and when computation waits for them."""

    def __init__(self, name: str, events: list[str]) -> None:
        self._name, self._events = name, events

    @contextmanager
    def beside(self) -> Iterator[None]:
        self._events.append(self._name)
        yield

    def join(self) -> None:
        self._events.append(f"wait {self._name}")


def forward(copies: HostCopies, plan: str = "offload", events: list[str] | None = None) -> tuple[Any, Tensor]:
    """Return a model with its output."""
    config = small_config(num_hidden_layers=LAYERS)
    model = build_decoder(config)
    apply_checkpointing(model, Scheme("<1>").with_checkpointing(plan), copies)
    return model, output_of(model, events)


def output_of(model: Any, events: list[str] | None = None) -> Tensor:
    if events is not None:
        for name, layer in model.layers.items():
            layer.register_forward_hook(lambda *_, name=name: events.append(f"forward {name}"))
    token_T, _ = random_tokens(small_config(), LENGTHS, padded=False)
    output: Tensor = model(token_T, PackedSequences.from_lengths(LENGTHS, "cpu")).sum()
    return output


def test_copies_start_a_layer_ahead() -> None:
    events: list[str] = []
    copies = HostCopies(CPU, Recorded("out", events), Recorded("back", events))
    _, output = forward(copies, "offload:3/4", events)
    # Layer 0 saves on the device. The last layer's backward comes next, so it stays.
    assert events == [
        "forward 0",
        "out",
        "forward 1",
        "wait out",
        "out",
        "forward 2",
        "wait out",
        "forward 3",
    ]
    events.clear()
    output.backward()
    # No copy of layer 3, whose backward starts that of layer 2; each then starts the one before it.
    assert events == ["wait out", "wait back", "back", "wait back", "back", "wait back"]


def test_the_device_holds_two_layers_and_the_host_the_others() -> None:
    copies = HostCopies(CPU)
    _, output = forward(copies)
    layer = copies.most_host_bytes / (LAYERS - 1)
    assert copies.most_device_bytes == 2 * layer > 0
    assert sum(page.nbytes for page in copies.pages.tensors) >= copies.most_host_bytes
    output.backward()
    assert copies.most_device_bytes == 2 * layer
    pages = len(copies.pages.tensors)
    _, again = forward(copies)
    again.backward()
    assert len(copies.pages.tensors) == pages


def test_full_offload_copies_inputs_alone() -> None:
    events: list[str] = []
    copies = HostCopies(CPU, Recorded("out", events), Recorded("back", events))
    model, output = forward(copies, "full-offload", events)
    hidden = small_config().hidden_size
    layer = sum(LENGTHS) * hidden * output.dtype.itemsize
    assert copies.most_host_bytes == (LAYERS - 1) * layer
    assert copies.most_device_bytes == 2 * layer
    events.clear()
    output.backward()
    # Each layer waits for its input before it computes again; that of the layer before is then on its way.
    assert events == ["wait out", "wait back", "back", "wait back", "back", "wait back", "back", "wait back"]
    plain, expected = forward(HostCopies(CPU), "none")
    expected.backward()
    gradients = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        found, wanted = parameter.grad, gradients[name].grad
        assert (found is None) == (wanted is None), name
        assert found is None or wanted is None or torch.equal(found, wanted), name


def test_another_micro_batch_sends_the_last_layer_away() -> None:
    copies = HostCopies(CPU)
    model, first = forward(copies)
    layer = copies.most_host_bytes / (LAYERS - 1)
    second = output_of(model)
    assert copies.most_host_bytes == (2 * LAYERS - 1) * layer
    assert copies.most_device_bytes == 2 * layer
    (first + second).backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    plain, one = forward(HostCopies(CPU), "none")
    (one + output_of(plain)).backward()
    expected = {name: parameter.grad for name, parameter in plain.named_parameters()}
    assert sum(gradient is not None for gradient in expected.values()) > 20
    for name, gradient in expected.items():
        value = found[name]
        assert (value is None) == (gradient is None), name
        assert gradient is None or value is None or torch.equal(value, gradient), name


def test_a_forward_without_a_backward_leaves_nothing() -> None:
    copies = HostCopies(CPU)
    _, output = forward(copies)
    del output
    copies.reset()
    assert copies.most_host_bytes == copies.most_device_bytes == 0
    with torch.no_grad():
        forward(copies)
    assert copies.most_host_bytes == 0


@pytest.mark.parametrize("nbytes", [1, 65_536, 65_537, 200_000])
def test_pages_are_used_again(nbytes: int) -> None:
    pages = HostPages(CPU)
    taken = pages.take(nbytes)
    assert sum(page.nbytes for page in taken) - nbytes < pages.page_bytes
    pages.give_back(taken)
    assert {id(page) for page in pages.take(nbytes)} == {id(page) for page in taken}
    assert len(pages.take(1)) == 1
    assert len(pages.tensors) == len(taken) + 1
