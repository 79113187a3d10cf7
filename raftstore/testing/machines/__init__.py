"""The test kit for users' own state machines: in memory, by two processes, in simulated worlds."""
