"""Objects that are fixed once built: a setting that is assigned later would be a promise unkept."""


class ReadOnly:
    """Refuses to be given public attributes; what is private is its own business."""

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        known = sorted(
            each
            for kind in type(self).__mro__
            for each, thing in vars(kind).items()
            if isinstance(thing, property) and not each.startswith("_")
        )
        what = "cannot be changed" if name in known else "does not exist"
        raise AttributeError(
            f"{name!r} {what}: a {type(self).__name__} is fixed once it is built. It can be read "
            f"for {', '.join(dict.fromkeys(known))}; other settings make another policy"
        )
