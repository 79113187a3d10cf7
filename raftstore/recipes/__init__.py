"""State machines that programs need again and again, ready to be used and to be read as examples.

Each is one module on the public names alone (``StateMachine``, ``codec``, errors), installed with
raftstore on every node::

    client.create_channelset("locks", machine="raftstore.recipes.lock:Lock")

* ``counter``: totals that are added to.
* ``lock``: a lock with a lease and a fencing token.
* ``election``: one leader among the processes of another program.
* ``rate_limiter``: so many permits in so much time.
* ``id_blocks``: numbers that are given out once.
* ``documents``: small documents, changed together on condition.
"""

from raftstore.recipes.counter import Counter
from raftstore.recipes.documents import Documents
from raftstore.recipes.election import Election
from raftstore.recipes.id_blocks import IdBlocks
from raftstore.recipes.lock import Lock
from raftstore.recipes.rate_limiter import RateLimiter

__all__ = ["Counter", "Documents", "Election", "IdBlocks", "Lock", "RateLimiter"]
