"""Gathers parameters from their owners and reduces gradients to them, bucket by bucket.

**Order.** Every rank starts the same buckets in the same order: all parameter gathers before the first
forward, first bucket first; gradient reductions from the last bucket to the first. A layer group waits for
its own parameters only. A bucket's gradient reduction starts when the last backward has passed its layer
group and the buckets behind it have started. A rank also starts buckets of other stages of its replica, whose
gradients it adds up: only after the messages on which those stages depend (`launch_order.py`).

**Gathered parameters** wait in the gradient buffer, which is free until the first backward, and arrive in
place. Where a rank holds parts of several owners' slices of each parameter, they arrive in the owners' order
and are permuted in place before their layer group computes; gradients are permuted back before they leave
(`segments.py`). The permutation uses the staging memory of gradients.

**Loads.** Buckets that do not fit into the gradient buffer together are gathered in several loads. All ranks
split the buckets alike, because two groups that start in different orders may wait for each other.

**Gradients.** Contributions of two buckets are staged at a time. On several nodes the rank with the owner's
place in its node (the *rail*) adds its node's gradients before it sends them, and distributes parameters.
Contributions are added in rank order, then in node order, in at least float32.

**Sharding.** Sharded gradients leave after each micro-batch (`gradient_rounds.py`), and sharded parameters
come for each forward and each backward (`parameter_rounds.py`). A rank has two layer groups of either.

**On CUDA** transfers have a stream of their own. Gradient reductions complete there without holding up
computation, because the host never sees an exchange complete in time.
"""
