"""Plain PyTorch decoder models on packed sequences, independent of parallelism.

One decoder serves all families; its config names the family. A sliding window is accepted where no sequence
may be longer (`data.max_tokens`): there it changes nothing, and no kernel needs to know it.

**Loss.** The mean over all target tokens of the global batch. Each micro-batch is scaled by the batch's one
denominator, so loss and gradients do not depend on the plan. Head and loss are one function over chunks of
tokens, so whole logits exist nowhere.

**Targets** are data: all tokens of a sequence but the first, or those of its loss mask. A plan counts them,
and each rank compares the sequences that it reads with its plan. A rank that cannot read a sequence continues
with zeros, so that all ranks stay in step, and then all raise its error.
"""
