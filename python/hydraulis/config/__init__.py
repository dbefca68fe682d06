"""Run configuration: typed, frozen and strict, read from TOML.

A configuration has layers: a preset, the file, overrides. A later layer wins. Of two alternative keys, such
as `data.tokens_per_batch` and `data.sequences_per_batch`, the later one removes the other. Dataclasses
declare and check the fields of every layer, and the origin of each value is recorded.
"""
