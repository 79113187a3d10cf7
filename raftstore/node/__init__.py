"""The outside world of a real node: settings, logs, clocks and the event loop that drives it.

Owns everything that reads a clock, a file of settings or the environment. Decides nothing about
replication: that is ``raftstore.core`` driven by ``raftstore.engine``. Imported by the command line
and by nobody else.
"""
