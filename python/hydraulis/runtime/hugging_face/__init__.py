"""Reads the parameters of Hugging Face models slice by slice, and exports checkpoints as such models."""
