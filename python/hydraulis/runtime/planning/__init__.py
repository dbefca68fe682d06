"""Plans made ahead of their iterations.

While an iteration runs, rank 0 plans the next batch on a thread, from a list of strategies or by search, with
the run's links. The planner takes over its measurements, the schemes' times and the ranks' rates, when a plan
is requested, before the iteration in which it is made. Plan `i` therefore uses the measurements of iterations
up to `i - 2`, independently of the threads' timing. A rank that is slow from iteration `i` on has two slow
observations after iteration `i + 1`, and plan `i + 3` is the first with its rate.
"""
