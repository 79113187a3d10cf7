"""Replica snapshots: a channel's table, or its log's base, from a replica that has it.

``decisions`` says what a replica needs and whether an offer helps it, ``sender`` serves those of
others, ``receiver`` takes them in; ``service`` is both behind one inbox of the node.
"""
