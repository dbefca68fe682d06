"""The state of training in files: written without holding training up, read by any number of ranks."""
