"""The start of a node: its store is opened, its cluster founded or joined again (S0.7)."""
