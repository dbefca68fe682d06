"""The sequences that commands read, the batches sampled from them, and the loss of a static strategy."""
