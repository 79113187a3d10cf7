"""Cost of the live audit: calls per operation without one, of few keys, and of all.

A count of calls does not depend on what else the machine does. Checks at other replicas are left
out: they are reads of the client's own, as many in a second as it allows.
"""

from __future__ import annotations

import time
from typing import Any, Final

from benchmarks.calls import WORKS, measure
from raftstore import Audit
from raftstore.audit.judge import Judge
from raftstore.audit.observation import Action, Observation, hash_of_key, hash_of_row

SHARES: Final = (0.0, 0.001, 0.01, 1.0)
JUDGED: Final = 50_000
KEYS: Final = 1_000


def run(tiny: bool) -> dict[str, Any]:  # noqa: FBT001 - the shape of every benchmark
    """A line for each share of the keys, at nodes and client alike, and the time of a judgement."""
    works = [work for work in WORKS if "64" in work.name]
    lines: list[dict[str, str]] = []
    for share in SHARES:
        audit = Audit(share, checks=0) if share else None
        variables = {"RAFTSTORE_AUDIT_KEYS_PER_MILLION": f"{round(share * 1_000_000)}"}
        found = measure(tiny=tiny, works=works, variables=variables, audit=audit)
        lines += [
            {
                "keys watched": f"{share:.1%}",
                "operation": name,
                "nodes": f"{seen.nodes:,.1f}",
                "client": f"{seen.client:,.1f}",
            }
            for name, (seen, _) in found.items()
        ]
    return {"calls per operation": lines, "us to judge one answer": f"{judging_us():.1f}"}


def judging_us() -> float:
    """How long a judge takes for a right answer about one of many keys, hashes included."""
    judge, row = Judge(keys_max=KEYS), b"x" * 100
    began = time.process_time()
    for seq in range(1, JUDGED + 1):
        key = b"key %d" % (seq % KEYS)
        seen = Observation(
            Action.GET, hash_of_key(key), seq, seq + 0.5, seq, seq, hash_of_row(row),
            level="linearizable",
        )  # fmt: skip
        assert not judge.observe(b"channel", "t/0", seen)
    return (time.process_time() - began) / JUDGED * 1e6
