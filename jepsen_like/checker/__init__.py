"""Judges of recorded histories; each usable alone."""
