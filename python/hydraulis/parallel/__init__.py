"""Parallelism applied to a model from outside: groups, tensor, context, pipeline, collectives.

**Ranks of a stage** are consecutive: tensor ranks innermost, context ranks around them. A context group is
the ranks of one stage that hold the same parameters and split a micro-batch's tokens.

**Process groups** are made on first use by all ranks together; the time is recorded. There are few, because
a stage's ranks are an aligned block. On `W` ranks there are `W / b` places for blocks of `b` ranks, each with
`cp` tensor groups and `tp` context groups (`groups.most_groups`): on one node and with powers of two at most
`W log2 W - W + 1` groups, and `log2 W (log2 W + 1) / 2` for any rank. Transfers have one group of each node
and, on several nodes, one of each rail; frozen parameters have as many again.
"""
