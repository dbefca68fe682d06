"""Parameters, flat buffers, optimizer shards and the optimizer.

**Owners.** Each element has one owner, a rank that holds its master parameter and its moments, the
optimizer's state. Optimizers are elementwise, because a rank owns slices of parameters
(`update_rule.py`). The norm over the whole model is the root of the owners' sums of squares, which the step's
one all-reduce adds up (`runtime/agreement/step_sum.py`), and clipping waits for the last gradient.

**Buffers.** A rank has one flat parameter buffer and one flat gradient buffer, with the size of its current
scheme's largest stage: a narrow scheme of the run takes no memory from ranks of a wide one. A stage's module
is built once over views of them. A change of scheme resizes the buffers before the step, while no activation
exists, so that the allocator can give them the memory that the last ones had.

**Frozen parameters** are marked in the column `trained` of the one table. Their buckets follow the trained
ones, so in the local shard the trained part comes first, and gradients are as long as that part. Their owners
keep them in the model's dtype, in a buffer of their own.
Trained parameters move as if the frozen ones did not exist; frozen ones are gathered only when some rank
changes its position, or with each layer group under sharded parameters.
"""
