"""The files of a run: metrics, trace, plans, tracking services."""
