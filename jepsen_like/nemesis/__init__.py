"""Faults, written once for every target that can inject them."""
