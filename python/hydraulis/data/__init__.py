"""Documents to packed tensors: the corpus, the global batches, the collation of micro-batches.

Files hold documents; training uses sequences. A document longer than `data.max_tokens` is split, cut or
refused (`data.too_long`); one without a target is left out and counted. Planning uses lengths and target
counts alone; a rank reads the sequences of its plan.

Padding to a multiple of tp x cp is a segment of its own and never counts.
"""
