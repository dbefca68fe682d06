"""Parameters, buffers, optimizer shards and the optimizer."""
