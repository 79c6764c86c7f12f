"""Check a document against the schema that is shipped beside it.

Knows the few words of JSON Schema that ours uses, and refuses a schema with any other: what is not
checked must not seem to be.
"""

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from capri.errors import StorageError

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list, tuple),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
_NOTES = {"$schema", "$id", "title", "description"}


@cache
def certificate_schema() -> dict[str, Any]:
    """The schema of certificates."""
    file = files("capri.privacy.certificate").joinpath("certificate.schema.json")
    schema: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return schema


def check_schema(value: Any, schema: dict[str, Any], place: str = "certificate") -> None:
    """Say where a value is not what the schema asks for; nothing where it is."""
    for word, wanted in schema.items():
        if word not in _NOTES and not _holds(word, wanted, value, schema, place):
            raise StorageError(f"{place} does not follow the schema: {word} is {wanted!r} there")


def _holds(word: str, wanted: Any, value: Any, schema: dict[str, Any], place: str) -> bool:
    match word:
        case "type":
            names = [wanted] if isinstance(wanted, str) else wanted
            return any(_is(value, name) for name in names)
        case "const":
            return bool(value == wanted)
        case "pattern":
            return not isinstance(value, str) or re.search(wanted, value) is not None
        case "minimum":
            return not _is(value, "number") or value >= wanted
        case "maximum":
            return not _is(value, "number") or value <= wanted
        case "minItems":
            return not isinstance(value, list | tuple) or len(value) >= wanted
        case "required":
            return not isinstance(value, dict) or set(wanted) <= set(value)
        case "properties":
            for name, below in wanted.items() if isinstance(value, dict) else ():
                if name in value:
                    check_schema(value[name], below, f"{place}.{name}")
            return True
        case "additionalProperties":
            return _others_hold(wanted, value, schema, place)
        case "items":
            for number, item in enumerate(value if isinstance(value, list | tuple) else ()):
                check_schema(item, wanted, f"{place}[{number}]")
            return True
    raise StorageError(f"the schema uses {word!r}, which is not known here")


def _is(value: Any, name: str) -> bool:
    # True is an int in Python and no number in JSON.
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _others_hold(wanted: Any, value: Any, schema: dict[str, Any], place: str) -> bool:
    if not isinstance(value, dict):
        return True
    others = set(value) - set(schema.get("properties", ()))
    if wanted is False:
        return not others
    for name in sorted(others):
        check_schema(value[name], wanted, f"{place}.{name}")
    return True
