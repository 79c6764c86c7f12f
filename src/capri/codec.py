"""What is stored: dataclasses as JSON values and arrays, and both as one piece of bytes.

A dataclass becomes ``{"class": "Belief", "epochs": 3, ...}``. Its arrays stand apart under dotted
names, such as ``belief.vector``, and leave ``{"class": "array"}`` in their place. Only classes that
a :class:`TreeCodec` lists are made, with exactly their fields, each of the type that it declares;
what differs is named. Nothing is pickled.
"""

import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from io import BytesIO
from types import EllipsisType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from capri.errors import StorageError
from capri.files import plain

Values = dict[str, Any]
Arrays = dict[str, Any]
State = tuple[Values, Arrays]
_ARRAY = {"class": "array"}
_TEXT = "state.json"
_LARGE = 1 << 16  # bytes


@dataclass(frozen=True)
class Form:
    """How a class is kept that checks what it reads by itself: by JSON values and arrays.

    Both functions are told what others keep.
    """

    write: Callable[[Any, Mapping[str, Any]], State]
    read: Callable[[Values, Arrays, Mapping[str, Any]], Any]


@dataclass(frozen=True, eq=False)
class TreeCodec:
    """Which classes are kept: ``classes`` by their fields, those of ``forms`` and below by a form.

    ``apart``: fields that somebody else keeps, or that nobody has to. Whoever reads gives them by
    their name; else they have their defaults.
    """

    classes: tuple[type, ...]
    apart: Mapping[type, tuple[str, ...]]
    forms: Mapping[type, Form]

    @cached_property
    def _named(self) -> dict[str, type]:
        return {each.__name__: each for each in (*self.classes, *self.forms)}

    @cached_property
    def _fields(self) -> dict[type, dict[str, Any]]:
        """The fields of every class that are kept, with their types."""
        found = {}
        for kind in self.classes:
            hints, apart = get_type_hints(kind, localns=self._named), self.apart.get(kind, ())
            own = [each.name for each in fields(kind) if each.init and each.name not in apart]
            found[kind] = {name: hints[name] for name in own}
        return found

    # -- writing ----------------------------------------------------------------------------------

    def write(self, thing: Any, name: str, **given: Any) -> State:
        """A thing as JSON values, and its arrays under a name."""
        arrays: Arrays = {}
        return self._written(thing, name, arrays, given), arrays

    def _written(self, thing: Any, name: str, arrays: Arrays, given: Mapping[str, Any]) -> Any:
        if isinstance(thing, np.ndarray):
            arrays[name] = thing
            return dict(_ARRAY)
        if isinstance(thing, np.generic):
            return thing.item()
        if thing is ...:
            return "..."
        if thing is None or isinstance(thing, bool | int | float | str):
            return thing.value if isinstance(thing, Enum) else thing
        if isinstance(thing, tuple | list):
            return [
                self._written(each, f"{name}.{i}", arrays, given) for i, each in enumerate(thing)
            ]
        if isinstance(thing, Mapping):
            return self._written(list(thing.items()), name, arrays, given)
        for kind, form in self.forms.items():
            if isinstance(thing, kind):
                values, own = form.write(thing, given)
                arrays |= {f"{name}.{key}": array for key, array in own.items()}
                return {"class": kind.__name__, "values": values}
        kept = {
            field: self._written(getattr(thing, field), f"{name}.{field}", arrays, given)
            for field in self._fields[type(thing)]
        }
        return {"class": type(thing).__name__} | kept

    # -- reading ----------------------------------------------------------------------------------

    def read(self, kind: Any, values: Any, arrays: Arrays, name: str, **given: Any) -> Any:
        """The inverse of :meth:`write`, of something of this kind, with what others keep."""
        return self._read(values, kind, name, arrays, given)

    def _read(self, value: Any, hint: Any, name: str, arrays: Arrays, given: Values) -> Any:
        """A value of this type, or an error that names the place where it is not."""
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        found = value
        if value == _ARRAY:
            if (found := arrays.get(name)) is None:
                raise StorageError(f"stored state is damaged: {name} is missing")
        elif isinstance(value, dict):
            found = self._made(value, name, arrays, given)
        elif isinstance(value, list):
            found = self._several(value, kinds, name, arrays, given)
        elif isinstance(value, str):
            found = _text(value, kinds)
        if not any(_fits(found, each) for each in kinds):
            raise StorageError(f"stored state is damaged: {name} is a {type(found).__name__}")
        return found

    def _made(self, values: Values, name: str, arrays: Arrays, given: Values) -> Any:
        kind = self._named.get(values.get("class", ""))
        if kind is None:
            raise StorageError(
                f"stored state is damaged: {name} is of class {values.get('class')!r}"
            )
        if kind in self.forms:
            return self.forms[kind].read(values["values"], below(name, arrays), given)
        hints = self._fields[kind]
        if odd := {*hints, "class"}.symmetric_difference(values):
            raise StorageError(
                f"stored state is damaged: {name} is a {kind.__name__} with other fields: "
                f"{', '.join(sorted(odd))}"
            )
        kept = {
            field: self._read(values[field], hint, f"{name}.{field}", arrays, given)
            for field, hint in hints.items()
        }
        known = {field: given[field] for field in self.apart.get(kind, ()) if field in given}
        return kind(**kept, **known)

    def _several(
        self, values: list[Any], kinds: tuple[Any, ...], name: str, arrays: Arrays, given: Values
    ) -> Any:
        """A tuple, or a mapping by its items."""
        for kind in kinds:
            origin, args = get_origin(kind), get_args(kind)
            if origin is tuple:
                each = args[:1] * len(values) if args[1:] == (...,) else args
                if len(each) == len(values):
                    places = enumerate(zip(values, each, strict=True))
                    return tuple(
                        self._read(value, hint, f"{name}.{i}", arrays, given)
                        for i, (value, hint) in places
                    )
            elif origin in _MAPPINGS:
                item = tuple[args]  # type: ignore[valid-type]
                return dict(
                    self._read(pair, item, f"{name}.{i}", arrays, given)
                    for i, pair in enumerate(values)
                )
        return values


_MAPPINGS = (dict, Mapping)


def _text(value: str, kinds: tuple[Any, ...]) -> Any:
    """A text, or what stands for it: a member of an enumeration, or all blocks."""
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Enum):
            return kind(value)
        if kind is EllipsisType and value == "...":
            return ...
    return value


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type; what a tuple holds was looked at before."""
    kind = get_origin(hint) or hint
    if kind is Any:
        return True
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    if kind is np.ndarray and isinstance(value, np.ndarray):
        wanted = get_args(get_args(hint)[1])[0]
        return bool(value.dtype.kind == np.dtype(wanted).kind)
    return isinstance(value, kind)


def below(name: str, arrays: Arrays, mark: str = ".") -> Arrays:
    """The arrays under a common name, without it."""
    start = f"{name}{mark}"
    return {key.removeprefix(start): each for key, each in arrays.items() if key.startswith(start)}


# -- one piece of bytes ---------------------------------------------------------------------------


def packed(values: Values, arrays: Arrays | None = None, *, in_order: bool = False) -> bytes:
    """JSON values and arrays as one zip file, without a date: equal values make equal bytes.

    ``in_order``: entries stay in their order, and what is made of them reads the same.

    >>> unpacked(packed({"bound": 0.5}, {"rows": np.eye(2)}))
    ({'bound': 0.5}, {'rows': array([[1., 0.],
           [0., 1.]])})
    """
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as folder:
        text = json.dumps(values, default=plain, sort_keys=not in_order)
        folder.writestr(zipfile.ZipInfo(_TEXT), text)
        for name in sorted(arrays or {}):
            content = BytesIO()
            array = np.asarray((arrays or {})[name])
            np.lib.format.write_array(content, array, allow_pickle=False)
            # Decisions wait while a belief of megabytes is written: it is made small before.
            how = zipfile.ZIP_DEFLATED if array.nbytes > _LARGE else zipfile.ZIP_STORED
            entry = zipfile.ZipInfo(f"{name}.npy")
            folder.writestr(entry, content.getvalue(), how, compresslevel=1)
    return file.getvalue()


_DAMAGED = "a public value of the store is damaged: restore the newest copy"


def unpacked(blob: bytes, damaged: str = _DAMAGED) -> State:
    """The inverse of :func:`packed`, or a :class:`StorageError` with these words for damage."""
    try:
        with zipfile.ZipFile(BytesIO(blob)) as folder:
            values = json.loads(folder.read(_TEXT))
            arrays = {
                entry.removesuffix(".npy"): np.lib.format.read_array(
                    BytesIO(folder.read(entry)), allow_pickle=False
                )
                for entry in folder.namelist()
                if entry.endswith(".npy")
            }
    except Exception as problem:  # zipfile, zlib, json and NumPy each fail in ways of their own
        raise StorageError(damaged) from problem
    if not isinstance(values, dict):
        raise StorageError(damaged)
    return values, arrays
