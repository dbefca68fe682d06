"""Adapters: the balanced sampler and planner in other frameworks, a module for each.

A module imports its framework on its own import alone. `docs/drop-in.md` has the lines to write for each
framework, and `examples/peers/` a script that runs on the CPU.
"""
