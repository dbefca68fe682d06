"""The files of a run: metrics, trace, plans, tracking services.

Each step has one line of metrics, which goes to the file, the terminal and the tracking services. A tracking
service implements two functions, `log` and `close`. Token counts exclude padding. Model FLOP utilisation
(MFU) uses the squared lengths of sequences, not of packs, and is absent without `output.peak_tflops`.
"""
