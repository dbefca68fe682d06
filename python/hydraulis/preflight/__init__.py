"""Checks of a run before any of its ranks starts.

Each refusal is the error that the run itself would raise, from the same functions.
"""
