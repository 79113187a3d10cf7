"""The client of a cluster: finds leaders, writes with known outcomes, reads by level.

* ``publishing``      pure: one write from guid to outcome (S4, S5.6)
* ``session``         guids of this process: one producer session per channel (S4.5)
* ``topology``        pure: what is known of tables, replicas and leaders; hints only (S7.4)
* ``links``           two connections per node, for writes and for all else, kept alive
* ``discovery``       keeps the topology fresh; first contact
* ``publisher``       drives ``publishing`` over links: multicast, relay, back-pressure
* ``attempt``         one request at one node, and the one rule for how long it is waited for
* ``leader_requests`` commands and questions to the leader of a channel
* ``route_book``      pure: what is known of the replicas; ``policy.routing`` orders them by it
* ``read_engine``     one read: candidates (``router``), attempts, an answer or an error
* ``get_batcher``     the fast path of gets: those of one turn of the loop are sent together
* ``pages``           scans over many pages as one state; page tokens
* ``batch_writes``    atomic micro-batches: begin, commit, writers; ``stager`` their rows
* ``fates``           what became of a write, by its guid
* ``kip535``          metadata, lags and stores under KIP-535's names
* ``admin``           tables, status, events, hand-over
* ``table``, ``bulk`` what users call on a table
* ``asyncio_client``  the client, asyncio; ``blocking`` the same names for everybody else

Decides nothing about the protocol: a leader's word is final, everything cached here is a hint.
Rows become bytes in ``raftstore.rows``; nodes never decode values.
"""
