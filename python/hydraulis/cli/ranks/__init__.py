"""Commands that run as several ranks, and how a rank ends."""
