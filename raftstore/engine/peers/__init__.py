"""The other nodes: alive or not, what they lead, how far they are, and what failovers took."""
