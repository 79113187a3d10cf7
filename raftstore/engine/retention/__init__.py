"""How much of the log a node keeps: what still needs it, and when the rest of it goes."""
