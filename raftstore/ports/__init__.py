"""Interfaces of the engine to the outside, with the promises of each side.

Every port is called from one thread (the node's loop, or the simulator). Ports never block on a
disk or a socket: they enqueue, and completion comes back through the NodeRunner's ``on_…`` methods.
The exceptions are reads, which are short. Any failure of a log or table operation is a StorageError
and stops the node (S0.4).
"""
