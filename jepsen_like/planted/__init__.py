"""Deliberately broken versions of raftstore that the kit must catch."""
