"""Benchmarks: the peer or the floor and raftstore in one run, in turn; ratios, not verdicts."""
