"""Workloads: the operations of clients during a run, and the checkers that judge it."""
