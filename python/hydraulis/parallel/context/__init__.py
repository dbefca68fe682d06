"""Context parallelism: ranks split a micro-batch's tokens and attend across them.

Each context rank holds equally many tokens of a micro-batch, padded to a multiple of tp x cp. The decoder
computes on them as on any tokens. It calls the `attend` of their sequences, which alone knows the other
ranks.

- *Ulysses* gives each rank contiguous tokens, and exchanges tokens for heads: queries, keys and values in one
  all-to-all. A key/value head goes to each rank that has one of its query heads; the number of ranks need not
  divide the number of heads.
- *Ring* attention passes keys and values around, merges the ranks' results by log-sum-exp, and sends the
  gradients of keys and values after them. Each rank holds two chunks of each sequence, from both ends; the
  pairs are chosen so that tokens are equal and work nearly equal.

Time and memory depend on the kind. A profile therefore states the measured kind of each scheme, and the plan
passes it on.
"""
