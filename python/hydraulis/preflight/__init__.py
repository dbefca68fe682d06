"""Checks of a run that need none of its ranks.

Each refusal is the error that the run itself would raise, from the same functions.
"""
