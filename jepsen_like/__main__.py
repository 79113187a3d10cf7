"""python -m jepsen_like: the same as raftstore-jepsen."""

from jepsen_like.cli import main

main()
