"""One channel on one node: the core's effects, done to the log, the table and the peers."""
