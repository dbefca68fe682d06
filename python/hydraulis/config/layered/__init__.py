"""A configuration in layers: preset, file, overrides; tables and TOML."""
