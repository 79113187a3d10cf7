"""Which boot of the machine this is: what the system was handed survives as long as it (S0.6)."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final
from uuid import UUID

from raftstore import faults
from raftstore.storage.log.mark import BOOT_BYTES

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@cache
def machine_boot(path: Path = BOOT_ID) -> bytes:
    """16 bytes that are others after each boot. Where the system does not show them, they are
    others in every process: then each stop counts as one of the machine."""
    try:
        boot = UUID(path.read_text(encoding="ascii").strip()).bytes
    except (OSError, ValueError):
        return os.urandom(BOOT_BYTES)
    return (int.from_bytes(boot, "big") ^ faults.power_losses()).to_bytes(BOOT_BYTES, "big")
