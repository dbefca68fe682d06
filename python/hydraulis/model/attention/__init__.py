"""Attention over packed sequences: one signature, one autograd function, a kernel for each kind of device.

Kernels are pure functions over packed segments of queries and keys. Forward returns output and log-sum-exp;
backward takes them. Blocks of keys can therefore be merged, and each block's backward gets the merged pair.

The worker takes the first kernel that supports the heads, or the one that `train.attention` names; the
refusal of a named kernel gives the reason. A measured profile records the kernel. Plain attention supports
any heads on any device, a block of queries at a time, in bounded memory.
"""
