"""A disk per node that can lose its power: an ext4 image on a loop device, shut down by ioctl.

Needs root. What was not fsynced is gone afterwards, as after a pulled plug: the file system stops
without flushing its journal, and the next mount replays what had reached the image.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

from jepsen_like.target.base import FaultUnavailableError

EXT4_IOC_SHUTDOWN: Final = 0x8004587D
NO_LOG_FLUSH: Final = 2
IMAGE_BYTES: Final = 1024 * 1024 * 1024
"""Sparse, and so large that nodes with default settings find space on it."""
TOOLS: Final = ("mkfs.ext4", "mount", "umount")
_JANITOR: Final = 'cat >/dev/null; for d in "$@"; do umount -l "$d" 2>/dev/null; done; true'


def why_unavailable() -> str | None:
    """The reason why disks of this kind cannot be used; None if they can."""
    if os.geteuid() != 0:
        return "power loss needs root, for ext4 images on loop devices; run it as root"
    missing = [tool for tool in TOOLS if shutil.which(tool, path=_path()) is None]
    if missing:
        return f"power loss needs {', '.join(missing)}; install e2fsprogs and mount"
    if not Path("/dev/loop-control").exists():
        return "power loss needs loop devices, and there is no /dev/loop-control here"
    return None


class Disks:
    """One mounted image per node. Unmounted by ``close``, or when this process ends anyhow."""

    def __init__(self, mounts: dict[str, Path], images: Path) -> None:
        reason = why_unavailable()
        if reason is not None:
            raise FaultUnavailableError(reason)
        self._mounts = mounts
        self._images = images
        images.mkdir(parents=True, exist_ok=True)
        # It ends when its stdin does, that is with this process, and takes the mounts away.
        self._janitor = subprocess.Popen(
            ["sh", "-c", _JANITOR, "janitor", *map(str, mounts.values())],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            for name, mount in mounts.items():
                image = self._image(name)
                with image.open("wb") as file:
                    file.truncate(IMAGE_BYTES)
                # None for root: what a node may write has to be what it is shown to be free.
                _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
                mount.mkdir(parents=True, exist_ok=True)
                self._mount(name)
        except BaseException:
            self.close()
            raise

    def go_dark(self, name: str) -> None:
        """Stop the file system at once: nothing more reaches the image."""
        descriptor = os.open(self._mounts[name], os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def come_back(self, name: str) -> None:
        """Mount again, after the node's process is gone."""
        _run("umount", str(self._mounts[name]))
        self._mount(name)

    def close(self) -> None:
        """Unmount everything and remove the images."""
        for mount in self._mounts.values():
            if mount.is_mount():
                _run("umount", "-l", str(mount))
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
        self._janitor.wait()
        for name in self._mounts:
            self._image(name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._images.rmdir()

    def _image(self, name: str) -> Path:
        return self._images / f"{name}.ext4"

    def _mount(self, name: str) -> None:
        _run("mount", "-o", "loop", str(self._image(name)), str(self._mounts[name]))


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def _run(*command: str) -> None:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": _path()},
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise FaultUnavailableError(f"{' '.join(command)} failed: {said[0]}")
