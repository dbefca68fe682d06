"""The sequences of each batch, and the number of iterations of a run.

Batch `i` depends on lengths, budget, seed and `i` alone, so the step is the whole state of a run's data. The
stream of sequences is endless unless the number of epochs ends it. Then the last batch holds the remaining
sequences, and every sequence has come equally often, except with weights and where the ends of epochs are
dropped. With weights, an epoch has as many tokens as all sources, each source its share of them, in turn
through permutations of its own. A batch of more than 100 epochs is reported. The number of steps follows from
the data, once, before anything that depends on it.
"""
