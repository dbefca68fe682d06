"""Text for people: counts, percentages, close names, values and reading errors in messages."""
