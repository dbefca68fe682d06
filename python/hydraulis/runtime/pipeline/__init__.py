"""A stage, its instruction list, and the timers of both."""
