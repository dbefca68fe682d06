"""Which sequences each batch holds, and how long a run is."""
