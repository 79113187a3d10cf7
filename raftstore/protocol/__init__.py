"""Everything that travels or is stored: messages by conversation, payloads, and their bytes.

| module | conversation |
|---|---|
| ``records``, ``payload``, ``staged``, ``lifetimes`` | what a log holds |
| ``publish`` | publishers and replicas: payloads, outcomes |
| ``replication`` | replicas of a channel: store, commit, catch up, confirm reads |
| ``election`` | votes, announcements, transfers |
| ``leader_moves`` | leaderships that are moved so that every node leads its share |
| ``payload_repair``, ``log_ends`` | payloads that did not come; records that a stop may have cost |
| ``replica_snapshots`` | a table or a base for a replica that no log helps |
| ``healing``, ``trimming`` | whose history is right; how far logs are trimmed |
| ``node`` | between nodes, whatever channels they host |
| ``bootstrap`` | founding a cluster |
| ``reads``, ``snapshots``, ``changes`` | clients that read rows, a whole table, what changed |
| ``batches`` | atomic micro-batches, asked and carried out |
| ``machines``, ``shared_commands`` | commands and queries of users' machines, the code of nodes |
| ``machine_restore`` | states of users' machines that come from a backup |
| ``members``, ``tickets`` | nodes that join, drain and leave |
| ``replica_orders`` | replicas of a channel that operators order |
| ``rebalance`` | replicas that move so that nodes hold even shares, and tags of nodes |
| ``admin``, ``table_settings`` | tables, status, events, metrics |
| ``replica_checks`` | comparing replicas, states for backups |
| ``audit`` | what clients found wrong with their answers |
| ``requests`` | the unions of all that clients ask, and of the answers |

``framing`` cuts a byte stream into checked bodies; ``codec`` turns bodies into messages, whose base
is in ``message``; ``out_of_range`` says what is wrong with a body that is none; ``tags`` is the one
register of the numbers that distinguish their kinds.
No socket, no clock, no thread. Whatever bytes arrive, the only exceptions that leave this room are
DecodeError and UnsupportedVersionError; the connection that brought such bytes is dropped by
``raftstore.transport`` and nothing else is affected (S12).
"""
