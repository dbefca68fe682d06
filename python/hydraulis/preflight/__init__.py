"""What can be known of a run before any of its ranks starts."""
