"""Parallelism applied to a model from outside: process groups, tensor, context and pipeline parallelism.

**Ranks of a stage** are consecutive: tensor ranks vary fastest, then context ranks. A context group is the
ranks of one stage that have the same parameters and split a micro-batch's tokens.

**Process groups** are made on first use by all ranks together, and the time is recorded. There are few,
because the ranks of a stage are aligned. On `W` ranks a stage group of `b` ranks has `W / b` positions, each
with `cp` tensor groups and `tp` context groups. On one node with powers of two these are at most
`W log2 W - W + 1` groups, and `log2 W (log2 W + 1) / 2` for any rank (`groups.most_groups_of_rank`).
Transfers use one group per node and, on several nodes, one per rail.
"""
