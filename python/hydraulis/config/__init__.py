"""Run configuration: typed, frozen and strict, read from TOML."""
