"""Layers of a configuration (preset, file, overrides), and conversion between tables and dataclasses."""
