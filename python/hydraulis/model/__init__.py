"""Plain PyTorch decoder models on packed sequences, independent of parallelism.

One decoder serves every family; its config selects the family. A checkpoint with a sliding window is accepted
if `data.max_tokens` keeps every sequence inside the window: full attention then gives the same result.

**Loss.** The loss is the mean over all target tokens of the global batch. Each micro-batch divides by the
batch's one denominator, so loss and gradients do not depend on the plan. Head and loss are one function over
chunks of tokens, so the logits of a whole micro-batch are never stored.

**Targets** are part of the data: every token of a sequence except the first, or the tokens of its loss mask.
A plan states their number, and each rank compares its sequences with the plan. A rank that cannot read a
sequence continues with zeros, so that all ranks stay in step; then all ranks raise its error.
"""
