"""Elections: who leads a channel, in which term, and nothing else (safety contract S1, S9).

Purpose: implement ``ports.election.Elector``. pysyncobj keeps exactly three things per channel:
term, vote and the moves between roles. Everything that makes them safe over a lossy network and a
disk that may crash stands around it: our comparator (S1.1), one vote per *member* (S1.3), refusals
that carry a term (S1.4), pre-vote and stickiness, repetition of lost messages, transfer (S9),
step-down.

* ``pysyncobj_elector`` the only module that imports pysyncobj: five typed verbs over one SyncObj.
* ``voting_elector``    the rules of a round and of every message.
* ``guarded_machine``   term, vote and role: guards on what pysyncobj answers, and their mirror.
* ``voting``            the words between the two and pysyncobj.
* ``fixed_elector``     a leader named by configuration: tests and single nodes, no votes.
* ``conformance``       refuses, at process start, a pysyncobj that behaves differently.

It does not own: logs, histories and configurations (the replica's core says them), disks (the
host persists, and holds back every message until that is durable, S0.5), the detection of dead
nodes (the engine calls ``suspect``), or the decision to serve. An elector's role is a claim; a
leader acts on it only as far as S3 and S7 allow.

Cost: a channel without an election in progress has no timer; its SyncObj is created for an
election and may be evicted at any time outside one without changing behaviour.
"""
