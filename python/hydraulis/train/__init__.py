"""Training of a run on one rank: its data, its parts, its loop, and the events that an observer receives."""
