"""The log: records, terms and votes in segment files, the mark, recovery."""
