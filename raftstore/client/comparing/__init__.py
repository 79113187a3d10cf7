"""Comparing the replicas of a channel."""
