"""Plans made ahead of the iterations that they are for."""
