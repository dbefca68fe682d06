"""Run configuration: typed, frozen and strict, read from TOML.

A configuration has layers: a preset, the file, overrides. A later layer wins; of two keys that state the same
thing in different ways, the later layer's removes the other. Dataclasses declare and check the fields of
every layer, and the origin of each value is recorded.
"""
