"""Plans made ahead of their iterations.

Rank 0 plans the next batch on a thread while an iteration runs, by list or search, with the run's links.
Nothing is planned between two iterations, when the planner learns the schemes' measured times (if
`planner.recalibrate` asks for it). Plan `i` therefore uses the measurements of iterations up to `i - 2`,
whatever the timing of the threads.
"""
