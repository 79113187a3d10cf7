"""Everything that travels or is stored: messages by conversation, payloads, and their bytes.

| module | conversation |
|---|---|
| ``records`` | what a log holds |
| ``publish`` | publishers and replicas: payloads, outcomes |
| ``replication`` | replicas of a channel: store, commit, catch up, confirm reads |
| ``election`` | votes, announcements, transfers |
| ``replica_snapshots`` | a table or a base for a replica that no log helps |
| ``node`` | between nodes, whatever channels they host |
| ``bootstrap`` | founding a cluster |
| ``reads``, ``snapshots``, ``changes`` | clients that read |
| ``batches`` | atomic micro-batches, asked and carried out |
| ``admin`` | tables, status, events, metrics |
| ``payload``, ``staged`` | what the payload of a record holds |

``framing`` cuts a byte stream into checked bodies; ``codec`` turns bodies into messages; ``tags``
is the one register of the numbers that tell their kinds apart.
No socket, no clock, no thread. Whatever bytes arrive, the only exceptions that leave this room are
DecodeError and UnsupportedVersionError; the connection that brought such bytes is dropped by
``raftstore.transport`` and nothing else is affected (S12).
"""
