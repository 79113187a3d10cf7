"""Spark writes: atomic batches, writes row by row, ``foreachBatch``."""
