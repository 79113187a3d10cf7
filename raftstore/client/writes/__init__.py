"""Writes: guids, records, retries, outcomes, back-pressure."""
