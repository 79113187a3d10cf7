"""The rules of one channel on one node. Pure: no I/O, no clock, no randomness, no threads.

Purpose: ``Replica.step(event, now_ms) -> list[Effect]`` is the whole replication protocol; the
engine turns messages, disk completions and timers into events and carries the effects out. The
same code runs in the node, in the simulator and in the script tests.

It owns: sequence numbers, log matching, acknowledgement and commit, catch-up, deduplication,
linearizable reads, hand-over, the chain hash. It does not own: terms, votes and roles
(``raftstore.election``), bytes on disk (``raftstore.storage``), or what records mean
(``raftstore.state_machines``).

Modules, from the outside in: ``replica`` (dispatch), ``leader`` with ``sequencer``, ``reads`` and
``hand_over``; ``follower`` with ``catch_up`` and ``live_queue``; ``state`` (facts both roles share)
over ``folds``, the list of all that is derived from the log: ``history``, ``tail``, ``chain``,
``batches``, ``dedupe``, ``configs``; ``pending``, ``progress``, ``quorum``.
"""
