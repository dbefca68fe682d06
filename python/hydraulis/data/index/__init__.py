"""The length index: documents tokenised once, by several processes, and then memory-mapped.

Tokens of records are stored in flat files next to lengths and target counts; files of Megatron and NumPy are
mapped without a copy. The name of an index depends on everything that decides its content. An index has the
same bytes for any number of processes, and an interrupted attempt is continued.
"""
