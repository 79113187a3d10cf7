"""Reads of a node: levels, bounds, waits, scans, kept states, changes, write outcomes."""
