"""Runs plans: the only package that knows both plans and tensors. `step.py` shows one training step.

Rank 0 plans; the other ranks receive the plan's bytes, or its error. Parameters and activations have the
model's dtype. Gradients are added and sent in at least float32, the dtype of the master parameters. A rank
whose replica has no work takes part in all transfers and computes nothing. No rank computes or sends
anything for an empty micro-batch.
"""
