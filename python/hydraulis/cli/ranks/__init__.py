"""Commands that run as several ranks: how these are started, and how they report errors."""
