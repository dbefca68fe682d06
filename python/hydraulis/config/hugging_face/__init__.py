"""Model configurations of Hugging Face: read, written, and named by a path."""
