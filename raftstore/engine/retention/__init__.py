"""How much of the log a node keeps: what still needs it, and when the rest of it goes. And when the
files of tables are merged, which keep more than rows."""
