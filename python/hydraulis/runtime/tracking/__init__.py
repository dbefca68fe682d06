"""Where a run's numbers go beside its own files: TensorBoard and Weights & Biases."""
