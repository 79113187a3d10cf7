"""Stores of stopped nodes, read side by side without changing them: ``raftstore log``."""
