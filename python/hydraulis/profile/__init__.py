"""Measures what a model costs on the ranks at hand; the fit is the core's."""
