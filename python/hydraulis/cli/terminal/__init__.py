"""Progress and displays on a terminal or in a log."""
