"""Context parallelism: ranks split a micro-batch's tokens and attend across the split.

Each context rank has the same number of tokens of a micro-batch, which is padded to a multiple of tp x cp.
The decoder computes on them like on any tokens. It calls `attend` of their sequences, the only operation that
communicates with the other context ranks.

- *Ulysses* gives each rank contiguous tokens and exchanges tokens for heads: queries, keys and values in one
  all-to-all. A key/value head is sent to every rank with one of its query heads. The number of ranks does not
  have to divide the number of heads.
- *Ring* attention passes keys and values from rank to rank, merges the results by log-sum-exp, and passes the
  gradients of keys and values in the same way. Each rank has two chunks of each sequence, one from each half;
  the pairs of chunks are chosen so that tokens are equal and work is nearly equal.

Time and memory depend on the kind, so a profile states the measured kind of each scheme, and the plan passes
it on.
"""
