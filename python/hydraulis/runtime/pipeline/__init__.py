"""A stage, its instruction list, and the timers of both.

The executor interprets the core's instruction lists, which state the order of 1F1B once. The lists finish
even if every rank had one channel and every exchange were a rendezvous in list order. A measured timeline is
the same list with measured durations.
"""
