"""The header of a bundle as every language reads it.

Numbers of a JSON text are IEEE doubles to most readers, who cannot tell ``1`` from ``1.0``. So a
whole number is one without a fraction, up to ``2^53 - 1``, however it is written; larger ones are
floats, and what has to be exact beyond that is written as text.
"""

import json
from typing import Any, NoReturn

from capri.errors import BundleError

LARGEST_WHOLE = (1 << 53) - 1
# How deep lists and objects may be nested: far more than any honest header, and than a kernel.
_DEEPEST = 200


def read_header(data: bytes) -> dict[str, Any]:
    """Strict JSON in UTF-8: no byte order mark, no NaN, and an object on the outside."""
    header = json.loads(
        data.decode("utf-8"), parse_int=_number, parse_float=_number, parse_constant=_constant
    )
    _check_depth(header, 1)
    if not isinstance(header, dict):
        raise BundleError("the bundle is malformed: its header is no object")
    for name, kinds in _KINDS.items():
        if name in header and not isinstance(header[name], kinds):
            raise BundleError(f"the bundle is malformed: {name} is of another type")
    if not (
        isinstance(header["conduct"]["law"], dict)
        and all(isinstance(each, list) and len(each) == 2 for each in header["arrays"])
        and all(isinstance(each[1], list) for each in header["arrays"])
    ):
        raise BundleError("the bundle is malformed: arrays and law are lists and an object")
    return header


_NOTHING = type(None)
_KINDS: dict[str, type | tuple[type, ...]] = {
    "arrays": list,
    "plan": dict,
    "conduct": dict,
    "grid": list,
    "kernel": dict,
    "span": dict,
    "sphere": list,
    "varying_actions": (list, _NOTHING),
    "action_names": (list, _NOTHING),
    "schema": (dict, _NOTHING),
}


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if abs(value) <= LARGEST_WHOLE and value.is_integer() else value


def _constant(text: str) -> NoReturn:
    raise BundleError(f"the bundle is malformed: {text} is no number of JSON")


def _check_depth(value: Any, depth: int) -> None:
    if depth > _DEEPEST:
        raise BundleError(f"the bundle is malformed: nested more than {_DEEPEST} deep")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        if isinstance(each, dict | list):
            _check_depth(each, depth + 1)
