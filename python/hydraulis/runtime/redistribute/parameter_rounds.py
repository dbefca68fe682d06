"""Gathers of sharded parameters: layer group by layer group, for each forward and each backward.

**Order.** All ranks launch one list of exchanges in one order, with a part for each round (see
`gradient_rounds.py`):

- the gathers of the forward, first layer group first;
- then, from the last layer group to the first one that has a trained parameter, where backward ends: the
  reduction of a layer group's gradients and the gather of the layer group two before it. The last two layer
  groups are still there from the forward, and the backward of the embedding needs no values.

Where parameters are frozen, a gather has two exchanges: that of the trained ones, then that of the frozen
ones.

**Waiting.**

- A computation waits for its layer group, and then launches the gather of the next one, into the part of the
  buffer that the computation before it has used.
- Before a backward launches a gather, it adds up the last reduction inside the node: on the CPU this thread
  waits for it, on CUDA the side stream.
- A rank without a micro-batch in a round launches the round's whole list.

The ranks of a stage group launch at the same places of their computation. So the first launch in the order
that is not complete has all its ranks free.

**Values.** Autograd saves views of the buffer, and each layer group always has the same place in it: by the
time of a backward, its values are there again.
"""

from collections.abc import Sequence

from hydraulis.runtime.redistribute.gradient_rounds import GradientRounds
from hydraulis.runtime.redistribute.parameter_gather import GatheredBucket, ParameterGather


class ParameterRounds:
    """Gathers the parameters of two layer groups at a time.

    Args:
        gather: Gather of single layer groups.
        reduction: Reduction of each micro-batch's gradients.
        num_layer_groups: Number of the model's layer groups.
        first_trained: First layer group with a trained parameter.
    """

    def __init__(
        self, gather: ParameterGather, reduction: GradientRounds, num_layer_groups: int, first_trained: int
    ) -> None:
        self._gather = gather
        self._reduction = reduction
        self._last = num_layer_groups - 1
        self._first_trained = first_trained
        # Of each round, the buckets of each layer group.
        self._rounds: Sequence[Sequence[Sequence[GatheredBucket]]] = ()
        self._has_backward = False
        # First round of this rank, and the one that it is in.
        self._first = self._round = 0

    def expect(
        self, rounds: Sequence[Sequence[Sequence[GatheredBucket]]], first: int, *, has_backward: bool
    ) -> None:
        """Expect the gathers of an iteration, or of forwards without backward.

        Args:
            rounds: This rank's buckets of each layer group, in each round.
            first: First round in which this rank computes; the number of rounds if there is none.
            has_backward: Whether each micro-batch has a backward.
        """
        assert not self._gather.is_awaited(self._last), "the iteration before has ended"
        self._rounds, self._first, self._round = rounds, first, 0
        self._has_backward = has_backward

    @property
    def is_expecting(self) -> bool:
        """Whether an iteration is expected; computations outside of one gather nothing."""
        return bool(self._rounds)

    def before_forward(self, layer_group: int) -> None:
        """Wait for a layer group's parameters, and start to gather the next ones."""
        if layer_group == 0:
            self._serve_until(self._first)
            self._start(0)
        self._gather.wait_for(layer_group)
        if layer_group < self._last:
            self._start(layer_group + 1)
        elif not self._has_backward:
            self._next_round()

    def before_backward(self, layer_group: int) -> None:
        """Wait for a layer group's parameters and for the part of the buffer that its gradients take."""
        self._gather.wait_for(layer_group)
        self._reduction.claim(layer_group)
        self._exchange_before(layer_group)

    def end_round(self) -> None:
        """Note that the backward of a micro-batch has ended; launch what its round has left."""
        self._reduction.pass_round()
        self._next_round()

    def finish(self) -> None:
        """Launch the exchanges of all rounds that are left."""
        self._serve_until(len(self._rounds))
        self._rounds = ()

    def _serve_until(self, number: int) -> None:
        """Launch the exchanges of rounds without a micro-batch of this rank."""
        while self._round < number:
            self._serve()

    def _serve(self) -> None:
        for layer_group in range(self._last + 1):
            self._start(layer_group)
            self._gather.wait_for(layer_group)
        if self._has_backward:
            for layer_group in range(self._last - 1, self._first_trained - 1, -1):
                self._gather.wait_for(layer_group)
                self._exchange_before(layer_group)
            self._reduction.pass_round()
        self._next_round()

    def _exchange_before(self, layer_group: int) -> None:
        """Launch what a backward launches before a layer group, in the one order of all ranks."""
        if layer_group == self._last:
            return
        self._reduction.reduce_through(layer_group + 1)
        # The forward has left the last two layer groups, and the embedding's backward needs no values.
        if max(self._first_trained, 1) <= layer_group - 1 < self._last - 1:
            self._start(layer_group - 1)

    def _start(self, layer_group: int) -> None:
        self._gather.start_layer_group(self._rounds[self._round][layer_group])

    def _next_round(self) -> None:
        self._round += 1
