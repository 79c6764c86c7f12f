"""Public values as a repository keeps them: as bytes in a database, as they are in memory.

Bytes are one JSON and one NPZ, without pickle and without a date. Equal values make equal bytes, so
that digests of them can be compared.
"""

import json
import zipfile
from abc import ABC, abstractmethod
from hashlib import sha256
from io import BytesIO
from typing import Any

import numpy as np

from capri.errors import StorageError
from capri.files import plain

_LARGE = 1 << 16  # bytes
Values = dict[str, Any]
Arrays = dict[str, Any]


def packed(values: Values, arrays: Arrays | None = None) -> bytes:
    """JSON values and arrays as one piece.

    >>> unpacked(packed({"bound": 0.5}, {"rows": np.eye(2)}))
    ({'bound': 0.5}, {'rows': array([[1., 0.],
           [0., 1.]])})
    """
    text = json.dumps(values, default=plain, sort_keys=True).encode()
    file = BytesIO()
    if arrays:
        with zipfile.ZipFile(file, "w") as folder:
            for name in sorted(arrays):
                content = BytesIO()
                array = np.asarray(arrays[name])
                np.lib.format.write_array(content, array, allow_pickle=False)
                # Decisions wait while a belief of megabytes is written: it is made small before.
                how = zipfile.ZIP_DEFLATED if array.nbytes > _LARGE else zipfile.ZIP_STORED
                # A fixed date: np.savez would write the present one.
                entry = zipfile.ZipInfo(f"{name}.npy")
                folder.writestr(entry, content.getvalue(), how, compresslevel=1)
    return len(text).to_bytes(8) + text + file.getvalue()


def unpacked(blob: bytes) -> tuple[Values, Arrays]:
    """The inverse of :func:`packed`, or a :class:`StorageError` for damage."""
    try:
        blob = bytes(blob)
        length = int.from_bytes(blob[:8])
        values = json.loads(blob[8 : 8 + length])
        rest = blob[8 + length :]
        arrays: Arrays = {}
        if rest:
            with np.load(BytesIO(rest), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
    except Exception as problem:  # json, zipfile and NumPy each fail in ways of their own
        raise StorageError("a public value of the store is damaged: restore the newest copy") from (
            problem
        )
    if not isinstance(values, dict):
        raise StorageError("a public value of the store is damaged: restore the newest copy")
    return values, arrays


class Codec(ABC):
    """How public values are kept. It crosses to another process, so it has no state."""

    @abstractmethod
    def pack(self, values: Values, arrays: Arrays | None = None) -> Any:
        """What is kept of some values."""

    @abstractmethod
    def unpack(self, kept: Any) -> tuple[Values, Arrays]:
        """The inverse of :meth:`pack`."""

    @abstractmethod
    def mark(self, kept: Any) -> bytes:
        """What a history of publications notes of it."""


class BytesCodec(Codec):
    """For databases."""

    def pack(self, values: Values, arrays: Arrays | None = None) -> Any:
        """One piece of bytes."""
        return packed(values, arrays)

    def unpack(self, kept: Any) -> tuple[Values, Arrays]:
        """The inverse of :meth:`pack`."""
        return unpacked(kept)

    def mark(self, kept: Any) -> bytes:
        """Its digest."""
        return sha256(kept).digest()


class PlainCodec(Codec):
    """For memory: values stay what they are, and nobody writes into them."""

    def pack(self, values: Values, arrays: Arrays | None = None) -> Any:
        """Both together."""
        return values, arrays or {}

    def unpack(self, kept: Any) -> tuple[Values, Arrays]:
        """The inverse of :meth:`pack`."""
        values, arrays = kept
        return values, arrays

    def mark(self, kept: Any) -> bytes:
        """No copy can be put in the place of memory: there is no history to keep."""
        return b""
