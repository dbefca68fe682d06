"""Figures, and the HTML report of a run. Drawing imports matplotlib; importing this package does not.

A report is made from the files of a run's folder, read strictly, and from plans made again; the traced step's
timelines use the trace's durations. Each figure is drawn once and written as SVG for the page or as PNG. The
same run gives the same bytes. A page has no script and its Content-Security-Policy forbids loading anything.
"""
