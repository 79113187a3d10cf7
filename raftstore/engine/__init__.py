"""The core's effects, done through the ports; no I/O of its own.

Synchronous and single-threaded: the asyncio node (``raftstore.node``) and the simulator
(``raftstore.testing``) drive the same code through one ``NodeRunner``. From below:

* ``deadlines``, ``shares``, ``clock``, ``halt``, ``node_ports``: what every part works with;
* ``channel``: a ``ChannelRunner`` per channel (core, elector, log, table), what opens, closes and
  schedules it, and the outbox behind the durability barrier. What happens to one channel's log or
  state goes here;
* ``snapshots``: tables that go to other replicas and come from them;
* ``peers``: beliefs about other nodes; ``meters``: counters; ``audit``: judges what is answered;
* ``client_answers``: the way back to clients; ``client_writes``: the payloads held for them;
  ``relayed_writes``: the way back to a follower that relayed a client's write;
* ``checkpoints``: syncs what was acknowledged before it was on the disk, when asked to;
* ``reads``: all that is answered from a state, now or when it may be;
* ``catalog``: which channels a node has, and the commands that change that. Members go here;
* ``leaders``: leaderships that are moved so that every node leads its share;
* ``batches``: micro-batches, between the coordinator and the channels of a table;
* ``healing``: damage of logs and tables, found by reading all of them and mended from other
  replicas;
* ``retention``: which logs are trimmed, and up to where; rows that expire;
* ``reports``: what is reported of a node; they look at all of the above (``NodeParts``);
* ``request_handler``, ``client_inbox``: where messages of clients enter; ``message_kinds``: those
  of nodes by what they are about;
* ``node_runner``: puts the parts together and takes each input to the one that it is for.

It does not own: protocol decisions (``core``), votes (``election``), bytes (``protocol``), files
(``storage``), sockets (``transport``), or any clock.
"""
