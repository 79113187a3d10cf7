"""Judges what was answered to real requests, by the positions that answers carry. Pure.

Each answer names a position of its channel, each row the record that wrote it. So a row is a
function of the position, positions that were reported are committed, and what one process saw, in
the order of its own clock, is enough to prove an answer wrong, even while others write. Nothing is
ever concluded from what was not seen ([why](docs/decisions/0040-live-audit.md)).
"""
