"""What clients do during a run, and which checkers judge it."""
