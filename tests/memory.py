"""Where files of tests need not wait for a disk."""

import os
import shutil

_PLACE = "/dev/shm"
_ROOM = 1 << 30  # all tests together leave a tenth of it

# A folder in memory with room for everything, or None.
MEMORY = _PLACE if os.access(_PLACE, os.W_OK) and shutil.disk_usage(_PLACE).free > _ROOM else None
