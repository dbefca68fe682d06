"""The files of a run: metrics, trace, plans, tracking services.

Each step is one line of metrics. It is made once and passed to the file, the terminal, and the tracking
services, each of which is behind two functions. Token counts leave padding out. The share of the device's
peak (MFU) uses the squares of sequences, not of packs, and is absent where the peak is not given.
"""
