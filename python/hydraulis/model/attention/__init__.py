"""Attention over packed sequences: one signature, one autograd function, a kernel for each kind of device."""
