"""Public values as bytes: one JSON and one NPZ, without pickle and without a date.

Equal values make equal bytes, so that digests of them can be compared.
"""

import json
import zipfile
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
