"""The `hydraulis` command: one file for each subcommand."""
