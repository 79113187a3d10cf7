"""Glue without I/O of its own: runs the core's effects against the ports.

Purpose: one ``ChannelRunner`` per channel (core + elector + log + table), one ``NodeRunner`` per
node (channels, heartbeats, leadership claims, catalog, reads). Synchronous and single-threaded: the
asyncio node (``raftstore.node``) and the simulator (``raftstore.testing``) drive the same code.

It owns: the outbox behind the durability barrier, fencing by term, waiting reads, what this node
believes of its peers. It does not own: protocol decisions (``core``), votes (``election``), bytes
(``wire``), files (``storage``), sockets (``transport``), or any clock.
"""
