"""Where files of tests need not wait for a disk."""

import atexit
import os
import shutil
import tempfile

_PLACE = "/dev/shm"
_ROOM = 1 << 30  # bytes that are free: servers, and the files of a few tests at a time

# A folder in memory with room for everything, or None.
MEMORY = _PLACE if os.access(_PLACE, os.W_OK) and shutil.disk_usage(_PLACE).free > _ROOM else None


def swept_folder(within: str) -> str:
    """A folder for what processes leave behind, browsers above all; it goes with this process."""
    folder, owner = tempfile.mkdtemp(prefix="capri-", dir=within), os.getpid()

    def sweep() -> None:
        if os.getpid() == owner:  # a fork that ends is not the end
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(sweep)
    return folder
