"""Figures, and the HTML report of a run. Importing it does not import matplotlib: drawing does."""
