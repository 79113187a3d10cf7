"""Rules across nodes and channels: who is alive, how far behind, whom to ask, where to place.

Pure: time comes in as an argument, nothing is sent or read from here. Health, lag and routing know
nothing of each other's sources (KLIP-16, KLIP-44), and none of them decides who leads: votes do.
"""
