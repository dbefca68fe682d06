"""Context parallelism: a micro-batch's tokens are shared out over ranks, and attend across them."""
