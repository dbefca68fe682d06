"""Files and folders that hold documents or tokens."""
