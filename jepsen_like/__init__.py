"""Fault injection for raftstore: workloads, faults, targets, checkers, reports.

A workload's clients call a target (a simulated world or real processes) while a nemesis injects
faults; what the clients saw is a history, and checkers judge it.
"""
