"""Locks on files, and a substitute for file systems without locks.

The kernel releases a lock when its process ends. Some network and FUSE file systems have no locks.
There, an exclusive pack creates a file (``HolderFile``) that names its process, and touches it
while it runs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

from fastload._common import files

MAX_IDLE_SECONDS = 3600  # after which a process whose lock cannot be seen counts as killed
_POLL_SECONDS = 0.2
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL)


class NoLocks(Exception):
    """The file system has no locks."""


def locked(
    path: Path, kind: int, *, create: bool = True, create_folder: bool = True, wait: bool = False
) -> int:
    """Opens and locks a file. Returns its descriptor.

    Raises BlockingIOError if another process holds the lock; ``wait`` waits for it instead. Raises
    NoLocks if the file system has none. Without ``create_folder``, a missing folder raises an error
    with the code ENOENT.
    """
    while True:
        if create:
            with files.writing(path, needed=4096):
                if create_folder:
                    path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        else:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
            # The previous owner may have removed the file since this process opened it.
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(descriptor)
            if error.errno in _NO_LOCKS:
                raise NoLocks from None
            raise
        os.close(descriptor)


def boot_id() -> str:
    """Identifies the running kernel, which containers of one machine share."""
    return Path("/proc/sys/kernel/random/boot_id").read_text()


class HolderFile:
    """A file that excludes other processes as long as it exists.

    The file of a killed process is replaced: at once if the process ran on this machine, otherwise
    after an hour in which it was not touched.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def is_held(self) -> bool:
        """Returns whether a process that may be running holds the file."""
        try:
            machine, _, process = self.path.read_text().rpartition(" ")
            age = _file_time(self.path) - self.path.stat().st_mtime
        except FileNotFoundError:
            return False
        if machine == _machine():
            return _start_time(process.partition("-")[0]) == process.partition("-")[2]
        return age < MAX_IDLE_SECONDS

    def acquire(self, *, wait: bool) -> None:
        """Creates the file. Raises BlockingIOError if another process holds it."""
        while True:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(
                    self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644
                )
            except FileExistsError:
                self._wait_or_remove(wait=wait)
                continue
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{_machine()} {os.getpid()}-{_start_time(str(os.getpid()))}")
            return

    def release(self) -> None:
        self.path.unlink(missing_ok=True)

    def _wait_or_remove(self, *, wait: bool) -> None:
        if not self.is_held():
            # Of several processes that find the file of a killed one, one renames it.
            aside = files.temporary_path(self.path)
            try:
                self.path.rename(aside)
            except FileNotFoundError:
                return
            aside.unlink()
        elif wait:
            time.sleep(_POLL_SECONDS)
        else:
            raise BlockingIOError(errno.EAGAIN, "held by another process", str(self.path))


def _machine() -> str:
    """Identifies the machine and the container, in which process ids are unique."""
    namespace = Path("/proc/self/ns/pid").readlink()
    return f"{boot_id().strip()} {namespace}"


def _start_time(pid: str) -> str:
    """Returns when a process started, in ticks since the boot, or '' if it does not run."""
    try:
        # The name of the process, in parentheses, may contain spaces.
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _file_time(path: Path) -> float:
    """Returns the current time of the file system, which may differ from that of this machine."""
    probe = files.temporary_path(path)
    with probe.open("wb") as file:
        probe.unlink(missing_ok=True)  # another process may remove it as a leftover
        return os.fstat(file.fileno()).st_mtime
