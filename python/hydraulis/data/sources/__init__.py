"""The files of a run's sources: found, prepared (indexed) and mapped."""
