"""The processes of a run: devices, process groups, lost ranks, a request to stop."""
