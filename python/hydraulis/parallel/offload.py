"""Offload of saved activations: a layer copies them to host memory in forward, and back before its backward.

torch's hooks for saved tensors give each tensor that a layer saves, attention's included. The storages of
these tensors are copied once each, whole, as the device would hold them whole. Parameters, rotary tables,
integers, and an input that came from another stage stay on the device, because they exist there anyway. The
output of a frozen embedding is copied.
Values, shapes and strides are restored, so gradients are bit-identical.

On CUDA copies overlap computation, each way on a stream of its own, and the host waits for none of them:

- Forward: a layer's copies start when its forward is issued. The device's memory is free when the next
  layer that offloads has computed: computation then waits for the copies, if they take longer.
- Backward: the first tensor that a layer's backward asks for starts the copies of the layer before it, and
  computation waits for the layer's own, which started one layer earlier.
- The last layer that offloads on a last stage stays on the device, because its backward comes next. It is
  copied if another micro-batch comes first.

So the device holds the activations of at most two such layers: one that computes, and one in a copy. On the
CPU the copies are made at once.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from hydraulis.model.rope import RotaryTable
from hydraulis.model.sequences import Sequences
from hydraulis.model.tensors import empty_on_host, storage_address

Forward = Callable[[Tensor, Sequences, RotaryTable], Tensor]

_PAGE_BYTES = {"cuda": 16 << 20}
_SMALL_PAGE_BYTES = 64 << 10
# Copies of aligned rows are faster.
_ALIGNMENT = 512


class CopyStream(Protocol):
    """A queue for copies, such as `runtime.ranks.streams.SideStream`."""

    def beside(self) -> AbstractContextManager[None]:
        """Issue the block's work after all computation issued so far."""

    def join(self) -> None:
        """Make later computation wait for the queue."""


class _AtOnce:
    """A queue whose work is done when it is issued, as on the CPU."""

    def beside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def join(self) -> None:
        pass


class HostPages:
    """Pages of host memory, pinned for CUDA, that copies use again and again.

    A page is allocated when the most pages that were ever in use at once are in use. Allocating pinned
    memory can make the host wait for the device, so the first micro-batches of a size may do that, and no
    later ones.

    Args:
        device: Device of the copied tensors.

    Attributes:
        tensors: All pages, uint8.
    """

    def __init__(self, device: torch.device) -> None:
        self.page_bytes = _PAGE_BYTES.get(device.type, _SMALL_PAGE_BYTES)
        self.tensors: list[Tensor] = []
        self._is_pinned = device.type == "cuda"
        self._free: list[Tensor] = []

    def take(self, nbytes: int) -> list[Tensor]:
        """Return pages for a number of bytes."""
        return [self._page() for _ in range(-(-nbytes // self.page_bytes))]

    def give_back(self, pages: list[Tensor]) -> None:
        """Take pages back; later copies into them follow earlier ones in the same queue."""
        self._free += pages

    def _page(self) -> Tensor:
        if self._free:
            return self._free.pop()
        page = empty_on_host([self.page_bytes], torch.uint8, is_pinned=self._is_pinned)
        self.tensors.append(page)
        return page


class _View(NamedTuple):
    """A saved tensor: its storage, and its place in it."""

    saved: "_SavedStorage"
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def tensor(self) -> Tensor:
        """Return the tensor, whose storage is on the device."""
        flat = self.saved.flat
        assert flat is not None, "the layer's copies were fetched"
        empty = torch.empty(0, dtype=self.dtype, device=flat.device)
        return empty.set_(flat.untyped_storage(), self.offset, self.size, self.stride)


class _SavedStorage:
    """One storage that a layer saves.

    Attributes:
        layer: All storages of the same forward of the layer.
        flat: The storage on the device, uint8; None while it is in host memory alone.
        nbytes: Bytes of the storage.
        place: First byte of its copy in the layer's pages.
    """

    __slots__ = ("__weakref__", "flat", "layer", "nbytes", "place")

    def __init__(self, layer: "_SavedLayer", tensor: Tensor) -> None:
        self.layer = layer
        self.flat: Tensor | None = _flat(tensor)
        self.nbytes = self.flat.nbytes
        self.place = 0


class _SavedLayer:
    """The storages that one forward of a layer saves.

    The graph alone refers to them, so each is freed after its last use, or with a graph without a backward.

    Attributes:
        storages: References to the storages, by address while the forward runs, in the order of the copies.
        previous: Saved storages of the layer before it that offloads, of the same micro-batch and stage.
        nbytes: Bytes of all storages.
        pages: Host memory of the copies.
        is_copied: Whether the copies to host memory were started.
        is_fetched: Whether the storages are on the device for the backward, or on their way.
        is_in_backward: Whether the layer's backward has begun.
    """

    def __init__(self, previous: "_SavedLayer | None") -> None:
        self.previous = previous
        self.storages: dict[int, weakref.ref[_SavedStorage]] = {}
        self.nbytes = 0
        self.pages: list[Tensor] = []
        self.is_copied = self.is_fetched = self.is_in_backward = False
        self.release: Any = None

    def alive(self) -> Iterator[_SavedStorage]:
        """Yield the storages that the graph still refers to: all until the layer's backward begins."""
        for reference in self.storages.values():
            saved = reference()
            if saved is not None:
                yield saved


class HostCopies:
    """The activations of this rank in host memory, and their copies.

    Args:
        device: Device of the activations.
        out: Queue of the copies to host memory.
        back: Queue of the copies to the device.

    Attributes:
        pages: Host memory of all copies.
        most_device_bytes: Most bytes at once of activations of layers that offload, on the device, since
            `reset`.
        most_host_bytes: Most bytes at once of copies in host memory, since `reset`.
    """

    def __init__(
        self, device: torch.device, out: CopyStream | None = None, back: CopyStream | None = None
    ) -> None:
        self.pages = HostPages(device)
        self.most_device_bytes = self.most_host_bytes = 0
        self._device = device
        self._out, self._back = out or _AtOnce(), back or _AtOnce()
        self._device_bytes = self._host_bytes = 0
        # The newest layer of a forward, which is on the device still.
        self._pending: _SavedLayer | None = None
        self._consumed: _SavedLayer | None = None

    def reset(self) -> None:
        """Start counting the most bytes again, where no backward is to come; forget forwards without one."""
        self._pending = self._consumed = None
        self._device_bytes = self.most_device_bytes = 0
        self.most_host_bytes = self._host_bytes

    def on_device(self) -> Iterator[Tensor]:
        """Yield the storages of the newest layer of a forward, which are on the device still."""
        if self._pending is not None:
            for saved in self._pending.alive():
                if saved.flat is not None:
                    yield saved.flat

    def begin(self, previous: _SavedLayer | None) -> _SavedLayer:
        """Begin the forward of a layer that offloads."""
        self._end_consumption()
        if self._pending is not None:
            self._copy(self._pending)
        return _SavedLayer(previous)

    def end(self, layer: _SavedLayer, *, stays: bool) -> None:
        """End the forward of a layer: the one before it leaves the device.

        Args:
            layer: Layer with its saved storages.
            stays: Whether the layer's backward is expected next, so that it is not copied yet.
        """
        layer.nbytes = sum(saved.nbytes for saved in layer.alive())
        self._count_device(layer.nbytes)
        self._release_pending()
        self._pending = layer
        if not stays:
            self._copy(layer)

    def require(self, layer: _SavedLayer) -> None:
        """Make computation wait for a layer's storages, at the beginning of its backward."""
        if layer.is_in_backward:
            return
        layer.is_in_backward = True
        self._end_consumption()
        if self._pending is layer:
            # Not before its copies are made may its memory serve others.
            self._out.join()
            self._pending, layer.is_fetched = None, True
        elif self._pending is not None:
            self._release_pending()
        self._fetch(layer)
        self._back.join()
        # Only now may other copies use the pages.
        self._release_host(layer)
        self._consumed = layer
        if layer.previous is not None:
            self._fetch(layer.previous)
            layer.previous = None

    def _end_consumption(self) -> None:
        if self._consumed is not None:
            self._device_bytes -= self._consumed.nbytes
            self._consumed = None

    def _release_pending(self) -> None:
        """Free the device's memory of the newest layer, when its copies are made."""
        layer, self._pending = self._pending, None
        if layer is None:
            return
        self._copy(layer)
        self._out.join()
        for saved in layer.alive():
            saved.flat = None
        self._device_bytes -= layer.nbytes

    def _copy(self, layer: _SavedLayer) -> None:
        """Start the copies of a layer to host memory."""
        if layer.is_copied:
            return
        layer.is_copied = True
        total = 0
        for saved in layer.alive():
            saved.place, total = total, total + -(-saved.nbytes // _ALIGNMENT) * _ALIGNMENT
        layer.pages = self.pages.take(total)
        self._host_bytes += layer.nbytes
        self.most_host_bytes = max(self.most_host_bytes, self._host_bytes)
        # A forward without a backward gives its host memory back too.
        layer.release = weakref.finalize(layer, self._give_back, layer.pages, layer.nbytes)
        layer.release.atexit = False
        with self._out.beside():
            for device_part, host_part in self._parts(layer):
                host_part.copy_(device_part, non_blocking=True)

    def _fetch(self, layer: _SavedLayer) -> None:
        """Start the copies of a layer to the device."""
        if layer.is_fetched:
            return
        layer.is_fetched = True
        for saved in layer.alive():
            saved.flat = torch.empty(saved.nbytes, dtype=torch.uint8, device=self._device)
        self._count_device(layer.nbytes)
        with self._back.beside():
            for device_part, host_part in self._parts(layer):
                device_part.copy_(host_part, non_blocking=True)

    def _release_host(self, layer: _SavedLayer) -> None:
        if layer.release is not None:
            layer.release()
            layer.release = None

    def _give_back(self, pages: list[Tensor], nbytes: int) -> None:
        self.pages.give_back(pages)
        self._host_bytes -= nbytes

    def _count_device(self, nbytes: int) -> None:
        self._device_bytes += nbytes
        self.most_device_bytes = max(self.most_device_bytes, self._device_bytes)

    def _parts(self, layer: _SavedLayer) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the parts of a layer's storages on the device, each with its place in a page."""
        page_bytes = self.pages.page_bytes
        for saved in layer.alive():
            assert saved.flat is not None, "copied from or to the device"
            begin = 0
            while begin < saved.nbytes:
                page, at = divmod(saved.place + begin, page_bytes)
                length = min(saved.nbytes - begin, page_bytes - at)
                yield saved.flat[begin : begin + length], layer.pages[page][at : at + length]
                begin += length


class OffloadedLayers:
    """The layers of one stage that offload, in the order of forward.

    Args:
        copies: Copies of the rank.
        number: Number of these layers.
        ends_here: Whether the stage is a last one, so that a backward follows its forward.
    """

    def __init__(self, copies: HostCopies, number: int, *, ends_here: bool) -> None:
        self._copies = copies
        self._number = number
        self._ends_here = ends_here
        self._previous: _SavedLayer | None = None

    def wrap(self, forward: Forward, place: int, parameters: frozenset[int]) -> Forward:
        """Return the forward of a layer that offloads.

        Args:
            forward: Forward of the layer.
            place: Number of such layers of the stage before it.
            parameters: Addresses of the storages of the layer's parameters.
        """

        def offloaded(x_tH: Tensor, sequences: Sequences, rotary: RotaryTable) -> Tensor:
            if not torch.is_grad_enabled():
                return forward(x_tH, sequences, rotary)
            layer = self._copies.begin(self._previous if place else None)
            left_out = {storage_address(table) for table in rotary if isinstance(table, Tensor)}
            if x_tH.is_leaf and x_tH.requires_grad:
                left_out.add(storage_address(x_tH))
            hooks = _Hooks(self._copies, layer, parameters | left_out)
            with saved_tensors_hooks(hooks.pack, hooks.unpack):
                y_tH = forward(x_tH, sequences, rotary)
            is_last = place + 1 == self._number
            self._previous = None if is_last else layer
            self._copies.end(layer, stays=is_last and self._ends_here)
            return y_tH

        return offloaded


class _Hooks:
    """The hooks for the tensors that one forward of a layer saves."""

    def __init__(self, copies: HostCopies, layer: _SavedLayer, left_out: frozenset[int]) -> None:
        self._copies = copies
        self._layer = layer
        self._left_out = left_out

    def pack(self, x: Tensor) -> "_View | Tensor":
        address = storage_address(x)
        if address in self._left_out or not x.is_floating_point() or x.numel() == 0:
            # An output that refers to itself is never freed, so another tensor of its storage is saved.
            return x if x.is_leaf else x.detach()
        storages = self._layer.storages
        reference = storages.get(address)
        saved = None if reference is None else reference()
        if saved is None:
            saved = _SavedStorage(self._layer, x)
            storages[address] = weakref.ref(saved)
        return _View(saved, x.dtype, x.size(), x.stride(), int(x.storage_offset()))

    def unpack(self, packed: "_View | Tensor") -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        self._copies.require(packed.saved.layer)
        return packed.tensor()


def _flat(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor's storage."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
