"""Models of Hugging Face: their parameters read slice by slice, and written."""
