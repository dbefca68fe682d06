"""Compares the facts that all ranks share: settings and data at the start, plan and tokens in each step."""
