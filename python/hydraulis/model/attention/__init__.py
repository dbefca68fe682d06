"""Attention over packed sequences: one signature, one autograd function, one kernel per kind of device.

Kernels are pure functions over packed segments of queries and keys. The forward returns the output and the
log-sum-exp; the backward takes them. The results of several blocks of keys can therefore be merged, and the
backward of each block takes the merged pair.

The worker uses the first kernel that supports the heads, or the kernel of `train.attention`. A named kernel
that does not support the heads raises an error with the reason. A measured profile records the kernel. Plain
attention supports any heads on any device in bounded memory: it computes one block of queries at a time.
"""
