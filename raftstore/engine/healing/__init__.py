"""Damage of a node's log and tables: found by reading everything in the background, and made good
from the copies that other replicas have."""
