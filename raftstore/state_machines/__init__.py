"""Deterministic state machines behind channels: rows of a table, and the catalog of the cluster.

A machine sees one committed record at a time and the present rows of its channel, and says which
rows change (S10). It owns no clock, no randomness and no state of its own, so every replica that
applies the same records holds the same rows.
"""
