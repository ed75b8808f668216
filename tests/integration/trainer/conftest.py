"""Each process of pytest-xdist gets a /dev/shm of its own: tests look there for what their runs leave behind."""

import ctypes
import os

import pytest

NEW_MOUNT_NAMESPACE = 0x00020000  # CLONE_NEWNS
RECURSIVELY_PRIVATE = 0x4000 | 0x40000  # MS_REC | MS_PRIVATE
LIBC = ctypes.CDLL(None, use_errno=True)


def pytest_configure(config: pytest.Config) -> None:
    """Runs in each process that runs tests, before it has started anything; needs root, as `make` has looked."""
    if hasattr(config, "workerinput"):
        succeed("unshare", LIBC.unshare(NEW_MOUNT_NAMESPACE))
        succeed("mount --make-rprivate /", LIBC.mount(b"none", b"/", None, RECURSIVELY_PRIVATE, None))
        succeed("mount /dev/shm", LIBC.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None))


def succeed(what: str, result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
