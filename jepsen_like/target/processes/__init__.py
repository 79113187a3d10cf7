"""Real node processes on loopback, and everything that can be done to them."""
