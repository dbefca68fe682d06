"""Files of records, one module for each format, read in pieces by several processes."""
