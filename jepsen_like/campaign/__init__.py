"""Hours of proof in units that are kept as they end: it can be stopped, and goes on."""
