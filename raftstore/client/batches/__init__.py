"""Atomic micro-batches: begin, stage, commit."""
