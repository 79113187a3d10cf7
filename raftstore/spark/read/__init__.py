"""Spark reads: tables, streams of changes, lookups."""
