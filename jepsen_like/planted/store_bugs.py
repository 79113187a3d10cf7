"""Bugs of the store on a real disk: S0, S1.3, S10."""

from __future__ import annotations

from jepsen_like.planted.bug import STORAGE, PlantedBug, on_disk
from jepsen_like.planted.source_patch import Edit

COMMITTER = "raftstore/storage/log/group_commit.py"

STORE_BUGS: tuple[PlantedBug, ...] = (
    on_disk(
        "S0.2",
        "half-a-store-starts",
        "A log without its mark starts with a new one.",
        Edit("raftstore/storage/log/recovery.py", "if has_log and has_mark:", "if True:"),
        Edit(
            "raftstore/storage/log/mark.py",
            '            raise mark._refusal("is missing")\n',
            "            cls.create(ops, path, store_uuid)\n",
        ),
    ),
    on_disk(
        "S0.3",
        "lost-tail-unnoticed",
        "A log that lost acknowledged records starts as if it had all.",
        Edit(
            "raftstore/storage/log/recovery.py",
            "if self._held.get(channel, {}).get(term, 0) < seq:",
            "if False:",
        ),
    ),
    on_disk(
        "S0.3",
        "mark-never-follows",
        "The mark does not follow the group commits.",
        Edit(
            COMMITTER,
            "            self._unmarked = dict(batch.rows)\n",
            "            self._unmarked = {}\n",
        ),
    ),
    on_disk(
        "S0.3",
        "vote-not-marked",
        "A vote is only in the log, and lost with its end.",
        Edit(
            COMMITTER,
            "self._mark.write(self._unmarked | batch.rows)",
            "self._mark.write(self._unmarked)",
        ),
    ),
    on_disk(
        "S1.3",
        "vote-not-persisted",
        "The term is stored with a change of vote, the vote itself is not.",
        Edit(
            "raftstore/storage/log/segment_log.py",
            "encode_vote(channel, term, voted_for, self._chain)",
            "encode_vote(channel, term, None, self._chain)",
        ),
        Edit(
            "raftstore/storage/log/mark.py",
            "name if flags & _VOTED else None,",
            "None,",
        ),
    ),
    on_disk(
        "S0.4",
        "handle-reused-after-a-failed-read",
        "A log goes on after a read that failed.",
        Edit(
            "raftstore/storage/log/segment_log.py",
            "        self.committer.failure = self.committer.failure or reason\n",
            "",
        ),
    ),
    on_disk(
        "S0.4",
        "handle-reused-after-a-failed-write",
        "A log goes on after a write or a sync that failed.",
        Edit(
            COMMITTER,
            """                self._write(batch)
        except Exception as error:
            self.failure = str(error)
""",
            """                self._write(batch)
        except Exception:
""",
        ),
    ),
    on_disk(
        "S0.5",
        "sync-forgotten",
        "A group commit completes when it is written, not when it is synced.",
        Edit(
            COMMITTER,
            """        if not self._unmarked:
            self._segments.sync()
            return
""",
            """        if not self._unmarked:
            return
""",
        ),
    ),
    on_disk(
        "S0.3",
        "checksum-not-verified",
        "The checksum of a record is not verified when it is read from the log.",
        Edit(
            "raftstore/storage/log/records.py", "if crc32(view[HEADER_BYTES:]) != crc:", "if False:"
        ),
    ),
    on_disk(
        "S0.3",
        "seal-not-verified",
        "The seal of a row is not verified when it is read.",
        Edit(
            "raftstore/rows/sealing.py",
            'if crc32(value, crc32(key)).to_bytes(4, "big") != sealed[:SEAL_BYTES]:',
            "if False:",
        ),
    ),
    on_disk(
        "S0.7",
        "second-founding-accepted",
        "A store accepts a second founding proposal.",
        Edit(
            STORAGE + "identity.py",
            "if accepted and (accepted, self.members) != (cluster_id, members):",
            "if False:",
        ),
        Edit(
            STORAGE + "identity.py",
            "        if not accepted:\n            facts =",
            "        if True:\n            facts =",
        ),
    ),
    on_disk(
        "S0.8",
        "dropped-id-used-again",
        "The id of a dropped table is used again.",
        Edit(
            "raftstore/storage/log/segment_log.py",
            "            if channel in self._dropped:\n",
            "            if False:\n",
        ),
    ),
    on_disk(
        "S0.8",
        "drop-forgotten",
        "A dropped table is forgotten by the next start, and its id is free again.",
        Edit(
            "raftstore/storage/log/recovery.py",
            "                self._log.channels.pop(channel, None)\n"
            "                self._log.dropped[channel] = None\n"
            "            case SegmentHeader():",
            "                pass\n            case SegmentHeader():",
        ),
        Edit(
            "raftstore/storage/log/recovery.py",
            "            if row.dropped:\n",
            "            if row.dropped and False:\n",
        ),
    ),
    on_disk(
        "S10",
        "position-outside-the-batch",
        "The applied position is not in the atomic batch of its rows.",
        Edit(
            "raftstore/storage/tables/applier.py",
            "                self._batch.put(applied_key(channel), encode_applied(channel, "
            "state.unflushed))\n",
            "                pass\n",
        ),
    ),
)
