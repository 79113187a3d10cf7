"""The durable side of a node: its log, its mark, its identity and its tables.

Owns: what is on the disk of one data directory, and the threads that write it. Does not decide what
is written: the engine does, through the ports ``MessageLog`` and ``TableStore``.

::

    raftstore.json   who this store is (``identity``); created last, so a half-made store is known
    lock             held while a process has the directory open
    reserve          holds nothing but space, for a start on a full disk (``space_reserve``)
    boot             whether the last process ended by itself
    log/             the authority: every channel's records, terms and votes (``segments``, ``log``)
    mark             what was promised, so that a log that lost its end is noticed (``mark``)
    tables/          applied rows in LevelDB (``leveldb_tables``; opened by ``leveldb_database``),
                     rebuilt from the log if in doubt
    quarantine/      damaged bytes put aside for inspection; never read again

``store.open_store`` is the way in. The log is synced, LevelDB is not: what LevelDB loses is
replayed. Any error of a write or sync poisons its part for good and stops the node (S0.4).

Threads: the loop thread owns everything except the batch being written (log writer thread, with a
helper for the mark), the apply queue's work (apply thread) and content hashes (their own thread).
Nothing here forks.
"""
