"""Parameters, flat buffers, optimizer shards and the optimizer.

**Owners.** Each element has one owner, a rank that holds its master parameter and AdamW's moments. The norm
over the whole model is therefore one all-reduce of the owners' sums of squares, and clipping waits for the
last gradient.

**Buffers.** A rank has one flat parameter buffer and one flat gradient buffer, sized for the largest stage
that it may be under any scheme of the run. A stage's module is built once over views of them, so a change of
strategy allocates nothing.

**Frozen parameters** have a table, owners and buffers of their own, and no gradient. Trained parameters move
as if the frozen ones did not exist; frozen ones move only when a rank changes its position.
"""
