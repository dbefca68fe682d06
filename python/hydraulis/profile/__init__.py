"""Measurement of a model's costs on the ranks of a run.

Ranks time micro-batches and count bytes; the core fits the coefficients, and `planner/profile_document.py`
writes the profile.
"""
