"""Comparisons with the batching of other frameworks, as they are on PyPI."""
