"""Settings of a player: declared once in its class, checked once, fixed from then on."""

from dataclasses import FrozenInstanceError, dataclass, fields
from typing import ClassVar, dataclass_transform

from capri.kernels import Kernel


@dataclass_transform(kw_only_default=True, eq_default=False)
class Settings:
    """The base of a player whose annotations are its keyword arguments.

    A subclass is made a dataclass: it declares what it takes and says in :meth:`_begin` what it
    makes of it. What was given may be normalised there; afterwards it cannot be set any more.
    """

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(kw_only=True, eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        self._begin()
        self._begun = True

    def __setattr__(self, name: str, value: object) -> None:
        if name in getattr(self, "__dataclass_fields__", ()) and "_begun" in vars(self):
            raise FrozenInstanceError(f"{name} is fixed when a policy is built: build another one")
        super().__setattr__(name, value)

    def _begin(self) -> None:
        """Check what was given and get ready to play."""

    @property
    def params(self) -> dict[str, bool | int | float | str | None]:
        """The plain values that determine how it plays, for the columns of a table.

        A budget is its epsilon and delta, a kernel what it prints as. Arrays are left out.
        """
        found: dict[str, bool | int | float | str | None] = {"policy": self.name}
        for name in (each.name for each in fields(self)):  # type: ignore[arg-type]
            value = getattr(self, name)
            if name == "budget":
                found |= {key: getattr(value, key, None) for key in ("epsilon", "delta")}
            elif isinstance(value, Kernel):
                found[name] = repr(value)
            elif value is None or isinstance(value, bool | int | float | str):
                found[name] = value
        return found
