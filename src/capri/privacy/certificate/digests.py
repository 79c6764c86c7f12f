"""Digests of public content: the same content has the same digest, on any machine."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from capri.files import plain


def canonical(content: Any) -> str:
    """JSON in one form only: sorted keys, no blanks, ASCII, shortest digits of every number.

    >>> canonical({"b": (1, 2.50), "a": "é"})
    '{"a":"\\\\u00e9","b":[1,2.5]}'
    """
    return json.dumps(content, sort_keys=True, separators=(",", ":"), default=plain)


def digest_of(content: Any, arrays: Mapping[str, Any] | None = None) -> str:
    """SHA-256 of canonical JSON, in hexadecimals; an array enters by type, shape and digest."""
    text = canonical(content if arrays is None else {"values": content, "arrays": _by_name(arrays)})
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _by_name(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _array(np.asarray(array)) for name, array in arrays.items()}


def _array(array: Any) -> dict[str, Any]:
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return {
        "dtype": little.dtype.str,
        "shape": list(array.shape),
        "sha256": hashlib.sha256(little.tobytes()).hexdigest(),
    }
