"""An epoch of a sampler: its order, its division into steps, and the position to resume from."""
