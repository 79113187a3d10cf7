"""Atomic micro-batches of a node: coordinators, and channels that stage and apply rows."""
