"""Auditing what a client is answered: what is noted, and judged by all clients of a process."""
