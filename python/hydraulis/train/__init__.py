"""`torchrun -m hydraulis.train RUN.toml`: trains, start to end."""
