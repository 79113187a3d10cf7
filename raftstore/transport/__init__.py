"""Sockets: frames between nodes and with clients, over plain asyncio Protocols.

Owns every connection of a node and the thread of its control loop. Promises little on purpose
(S12): what is sent may be lost, doubled by a retry above, late, or overtaken after a reconnect;
but what arrives is whole, checked, and comes from the peer it claims to come from.

* ``client_connection``  what a client holds: one connection to one node
* ``peers``              ``PeerNetwork``, the node's Transport port: all rooms below, put together
* ``server``             the one listening port; reads the Hello and sorts connections by purpose
* ``dialer``             keeps one outgoing connection to one peer alive
* ``clients``            accepted connections of clients and of proposers of a cluster's birth
* ``control``            the second event loop, in a thread of its own: heartbeats and elections
* ``connection``         a FramedProtocol: handshake, bounded sending, Goodbye
* ``handshake``          who may talk to whom about what; pure decisions
* ``traffic``            byte counters per peer and kind of message

Between two nodes there are four connections: each dials one for bulk and one for control, and sends
on what it dialled only. So no direction waits for the other side's dialling, and nothing of bulk
shares a socket or a thread with heartbeats and elections.

Does not decide who is up (raftstore.policy), does not retry a message, and reads no clock: the
monotonic and the wall clock are given to it.
"""
