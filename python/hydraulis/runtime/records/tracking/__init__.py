"""The services that receive a run's numbers: TensorBoard and Weights & Biases."""
