"""The sequences of a data set as items of a micro-batch: their lengths, and groups that stay together."""
