"""Plans made ahead of their iterations.

While an iteration runs, rank 0 plans the next batch on a thread, from a list of strategies or by search, with
the run's links. No planning runs between two iterations, where the planner learns the schemes' measured times
(if `planner.recalibrate` is set). Plan `i` therefore uses the measurements of iterations up to `i - 2`,
independently of the threads' timing.
"""
