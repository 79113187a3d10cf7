"""Targets of a run: a simulated world or real processes."""
