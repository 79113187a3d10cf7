"""Deterministic state of atomic micro-batches: the coordinator's, and a channel's staged rows."""
