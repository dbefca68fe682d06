"""Words for people: counts, shares, nearest names, values and refusals in messages."""
