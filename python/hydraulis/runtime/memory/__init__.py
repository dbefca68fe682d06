"""Memory that a rank is predicted to need, and memory that it uses."""
