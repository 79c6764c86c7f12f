"""Reference pages written from the code: every public name, command, endpoint and metric.

``make docs`` writes these pages anew before the site is built; they are not kept in the repository.
What the code does not describe is an error here, so nothing public stays without a word.
"""

from collections.abc import Iterator
from dataclasses import fields
from inspect import cleandoc
from operator import attrgetter
from pathlib import Path
from typing import Any

import typer

import capri

# Where a page says a name belongs, by the module that holds the name.
TOPICS = {
    "Policies": ("capri.joint", "capri.epoch"),
    "Contexts, actions and columns": ("capri.spaces", "capri.schema"),
    "Privacy": ("capri.privacy", "capri.store.organisation"),
    "Learning": ("capri.learners",),
    "Before launch": ("capri.forecast", "capri.simulation", "capri.audit"),
    "Devices": ("capri.local",),
    "Regression": ("capri.regression",),
    "Service": ("capri.client",),
    "Errors and warnings": ("capri.errors",),
    "Modules": ("capri",),  # kernels and environments
}


def names() -> str:
    """The Python interface, by topics."""
    left = dict(capri._HOMES)
    parts = ["# Python interface\n", "Every name below is imported as `capri.NAME`.\n"]
    for topic, homes in TOPICS.items():
        found = [
            name
            for name, home in left.items()
            if any(
                home == each or (each != "capri" and home.startswith(each + ".")) for each in homes
            )
        ]
        parts.append(f"## {topic}\n")
        for name in sorted(found):
            parts.append(_directive(name, left.pop(name)))
    if left:
        raise SystemExit(f"no topic of the reference holds {', '.join(sorted(left))}")
    return "\n".join(parts)


def _directive(name: str, home: str) -> str:
    found = attrgetter(name)(capri)
    if not (found.__doc__ or "").strip():
        raise SystemExit(f"capri.{name} says nothing of itself")
    if home == "capri":
        public = getattr(found, "__all__", None) or [
            each
            for each, value in vars(found).items()
            if not each.startswith("_") and getattr(value, "__module__", None) == found.__name__
        ]
        told = (found.__doc__ or "").strip()
        return f"### `capri.{name}`\n\n{told}\n\n" + "".join(
            _directive(f"{name}.{each}", f"capri.{name}") for each in public
        )
    kind = "autofunction" if callable(found) else "autodata"
    kind = "autoclass" if isinstance(found, type) else kind
    return _block(f".. {kind}:: capri.{name}\n")


def _block(text: str) -> str:
    return f"```{{eval-rst}}\n{text}\n```\n"


# -- commands -------------------------------------------------------------------------------------


def commands(app: typer.Typer, program: str) -> str:
    """Every command of a program, with its arguments and options."""
    parts = [f"# Command `{program}`\n"]
    for path, command in _walk(typer.main.get_command(app), (program,)):
        parts.append(f"## `{' '.join(path)}`\n\n{_told(command.help, ' '.join(path))}\n")
        rows = [row for each in command.params if (row := _option(each, path)) is not None]
        if rows:
            parts.append("| option | meaning | default |\n| --- | --- | --- |\n" + "\n".join(rows))
            parts.append("")
    return "\n".join(parts)


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, each in command.commands.items():
        yield from _walk(each, (*path, name))


def _option(option: Any, path: tuple[str, ...]) -> str | None:
    if getattr(option, "hidden", False):
        return None
    spelled = ", ".join((*option.opts, *option.secondary_opts))
    if option.param_type_name == "argument":
        spelled = str(option.metavar or option.name).upper()
    help_text = _told(getattr(option, "help", None), f"{' '.join(path)} {spelled}")
    default = "" if option.default is None or callable(option.default) else f"`{option.default}`"
    return f"| `{spelled}` | {_cell(help_text)} | {_cell(default)} |"


def _told(text: str | None, what: str) -> str:
    if not text or not text.strip():
        raise SystemExit(f"{what} says nothing of itself")
    return text.strip().replace("\b\n", "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# -- the service ----------------------------------------------------------------------------------


def endpoints(document: dict[str, Any]) -> str:
    """Every endpoint of the service, from its OpenAPI document."""
    parts = [
        "# Endpoints\n",
        "A running service answers with this document and its own limits at `/v1/openapi.json`.\n",
    ]
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            parts.append(f"## `{method.upper()} {path}`\n")
            parts.append(f"{told['summary']}. {told.get('description', 'No key is needed.')}\n")
            if "requestBody" in told:
                parts.append(f"Body: {_kinds(told['requestBody']['content'])}.\n")
            parts.append(f"Answer: {_kinds(told['responses']['200'].get('content', {}))}.\n")
    parts.append("## Messages\n")
    for name, schema in document["components"]["schemas"].items():
        told = cleandoc(schema.get("description", "")).replace("``", "`")
        parts.append(f"### `{name}`\n\n{told}\n")
        parts += _fields(schema)
    parts.append("## Refusals\n\n| status | meaning |\n| --- | --- |")
    refusals = next(iter(document["paths"].values()))
    answers = next(iter(refusals.values()))["responses"]
    parts += [f"| {code} | {_cell(each['description'])} |" for code, each in answers.items()]
    return "\n".join(parts) + "\n"


def _kinds(content: dict[str, Any]) -> str:
    return ", or ".join(
        f"`{kind}`" + (f" ({_schema(each['schema'])})" if "schema" in each else "")
        for kind, each in content.items()
    )


def _schema(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].rsplit('/', 1)[1]}`"
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(_schema(each) for each in schema.get("anyOf", schema.get("oneOf", [])))
    if schema.get("type") == "array":
        return f"list of {_schema(schema.get('items', {}))}"
    kind = schema.get("type", "anything")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _fields(schema: dict[str, Any]) -> list[str]:
    rows = ["| field | type | must be given |", "| --- | --- | --- |"]
    needed = set(schema.get("required", ()))
    rows += [
        f"| `{name}` | {_cell(_schema(each))} | {'yes' if name in needed else 'no'} |"
        for name, each in schema.get("properties", {}).items()
    ]
    return [*rows, ""] if len(rows) > 2 else []


# -- files and metrics ----------------------------------------------------------------------------


def files() -> str:
    """Every key of a policy file and of a study, and every option of the preset."""
    from capri.learners.options import PracticalOptions
    from capri.service.auth import ServiceLimits
    from capri.service.tables import KEYS
    from capri_lab.experiments import players, study, worlds

    parts = [
        "# Keys of files and options\n",
        "## The policy file\n",
        "`capri init` writes one with comments, `capri serve` reads it. Errors name the line.\n",
    ]
    for table, keys in KEYS.items():
        if table:
            parts.append(f"### `{'[[context]]' if table == 'context' else f'[{table}]'}`\n")
        if keys:
            parts.append(_keys(keys, f"policy file {table}"))
        if table == "options":
            parts.append("[Options of preset practical](#options-of-preset-practical).\n")
        if table == "service":
            parts.append(_defaults(ServiceLimits))
    parts += ["## A study\n", _keys(study.KEYS, "study"), "### `[[policies]]`\n"]
    of_players = players.KEYS | players.OF_CAPRI | players.OF_LINEAR
    parts.append(_keys(of_players, "policies"))
    parts += ["### `[[environments]]`\n", "| name | keys |", "| --- | --- |"]
    for name in worlds.WORLD_NAMES:
        keys = [each for each in worlds.keys_of(name) if each != "name"]
        parts.append(f"| `{name}` | {', '.join(f'`{each}`' for each in keys)} |")
    parts += ["", "## Options of preset practical\n", _defaults(PracticalOptions)]
    return "\n".join(parts)


def _keys(keys: dict[str, str], where: str) -> str:
    rows = [f"| `{key}` | {_cell(_told(text, f'{where} {key}'))} |" for key, text in keys.items()]
    return "\n".join(["| key | what it takes |", "| --- | --- |", *rows, ""])


def _defaults(kind: type) -> str:
    """What a dataclass says of its fields, and their defaults."""
    told = _told(kind.__doc__, kind.__name__).replace("``", "`")
    rows = []
    for each in fields(kind):
        if f"`{each.name}`" not in told:
            raise SystemExit(f"{kind.__name__}.{each.name} says nothing of itself")
        rows.append(f"| `{each.name}` | `{each.default}` |")
    lines = "\n".join(line.strip() for line in told.splitlines()[1:])
    return "\n".join([lines, "", "| key | default |", "| --- | --- |", *rows, ""])


def metrics() -> str:
    """Every metric of the service, with the role that may read it."""
    from capri.service.telemetry import LIVE, PUBLIC

    parts = ["# Metrics\n", "A running service answers in the text format of Prometheus.\n"]
    for path, role, found in (("/metrics", "read", PUBLIC), ("/metrics/live", "operator", LIVE)):
        parts.append(f"## `GET {path}`\n\nRole `{role}`.\n")
        parts += ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
        for name, (kind, labels, text) in found.items():
            shown = f"capri_{name}" + ("_total" if kind == "counter" else "")
            marked = ", ".join(f"`{each}`" for each in labels)
            parts.append(f"| `{shown}` | {kind} | {marked} | {_told(text, shown)} |")
        parts.append("")
    return "\n".join(parts)


# -- the laboratory -------------------------------------------------------------------------------


def laboratory() -> str:
    """What every rival promises, and where every real problem comes from."""
    from capri_lab.datasets.real import CHECK_NAMES, PROBLEMS
    from capri_lab.rivals.catalogue import BY_NAME

    parts = [
        "# Rivals and real problems\n",
        "## Who promises what\n",
        "Two numbers may be compared only where all of this is equal: who is trusted, whether a "
        "delta is involved, what one user is, and which of their data are protected. *Local*: a "
        "report is noisy before it leaves the user. *Shuffle*: a trusted shuffler mixes reports. "
        "*Joint*: a trusted curator adds noise. *Central*: a final output alone is released. "
        "*Reaches*: the longest horizon that takes minutes on 2,500 pairs and one core.\n",
        "| name | trusts | kind | unit | protects | reference | reaches T |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| `uniform` | nobody: no data used | | | | the yardstick | any |",
    ]
    for name, kind in BY_NAME.items():
        promise = kind.promise
        words = ["no privacy", "", "", ""]
        if promise.model != "none":
            words = [promise.model, promise.kind, promise.unit, promise.protects]
        cells = [f"`{name}`", *words, _told(kind.reference, name), f"{kind.reach:,}"]
        parts.append(f"| {' | '.join(cells)} |")
    parts += [
        "\n## Real problems\n",
        "Tables inside installable packages, read from disk: nothing is downloaded. Defaults were "
        "chosen on all but those marked *check*. **Invented** says which part of the rewards "
        "nobody ever saw.\n",
        "| problem | what | pays | invented | from, licence |",
        "| --- | --- | --- | --- | --- |",
    ]
    parts += [
        f"| `{name}`{' (check)' if name in CHECK_NAMES else ''} | {_told(each.title, name)} | "
        f"{each.pays} | {each.invented or 'nothing'} | {each.package}: {each.licence} |"
        for name, each in PROBLEMS.items()
    ]
    return "\n".join(parts) + "\n"


# -- all of it ------------------------------------------------------------------------------------


FILES = (
    "python.md", "capri.md", "capri-lab.md", "endpoints.md", "files.md", "metrics.md",
    "laboratory.md",
)  # fmt: skip


def pages() -> dict[str, str]:
    """The text of every generated page, by its name."""
    from capri.cli import app
    from capri.service.app import document
    from capri.service.auth import ServiceLimits
    from capri_lab.cli import app as lab

    texts = (
        names(),
        commands(app, "capri"),
        commands(lab, "capri-lab"),
        endpoints(document(ServiceLimits())),
        files(),
        metrics(),
        laboratory(),
    )
    return dict(zip(FILES, texts, strict=True))


def write(folder: Path) -> None:
    """Write all pages where they changed, so that a second build reads few."""
    for name, text in pages().items():
        file = folder / name
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
