"""Plain PyTorch decoder models on packed sequences; nothing here knows of parallelism."""
