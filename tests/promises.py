"""The error of a test that found a promise of the store broken, rather than late.

On the CI a failed test of real processes is tried once more, since its machines stand still now and
then. What says "wrong" has no second try: no pause of a machine loses an acknowledged write.
"""

from __future__ import annotations


class BrokenPromiseError(AssertionError):
    """Something was wrong, which no time would have made right."""


def promised(is_kept: object, otherwise: str) -> None:
    """Fail for good where this is not kept."""
    if not is_kept:
        raise BrokenPromiseError(otherwise)
