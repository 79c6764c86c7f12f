"""The wheel of the product alone, in a fresh environment with its core dependencies."""

import json
import os
import shutil
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution, version
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from test_docs import ROOT, blocks
from waiting import PATIENCE

EXTRAS = (
    "capri_lab", "sklearn", "pandas", "pyarrow", "dask", "distributed", "hypothesis", "pytest",
    "psycopg", "cryptography",
)  # fmt: skip


def run(*command: str | Path, cwd: Path) -> str:
    """What a program prints that knows nothing of this process's paths."""
    environment = {name: each for name, each in os.environ.items() if "PYTHON" not in name}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(project: Path, folder: Path) -> Path:
    """Built by this environment's setuptools, from a copy that may be littered."""
    if Version(version("setuptools")) < Version("77"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("building needs setuptools 77")
    source = folder / f"source-{project.name}"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(project / "src", source / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (project / name).exists():
            shutil.copy(project / name, source)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", "dist"]
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet"]
    subprocess.run([*pip, *options, "."], cwd=source, check=True, timeout=PATIENCE)
    (built,) = (source / "dist").glob("*.whl")
    return built


def linked(requirements: list[str], site: Path) -> None:
    """Let an environment see these distributions, and those that they need, where they are."""
    for requirement in map(Requirement, requirements):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        found = distribution(requirement.name)
        tops = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        if any((site / top).exists() for top in tops):
            continue
        for top in tops:
            (site / top).symlink_to(Path(str(found.locate_file(top))))
        linked(found.requires or [], site)


def install(wheel: Path, home: Path) -> Path:
    """Make an environment without extras; the folder of its python and capri."""
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    options = ["--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, *options, str(wheel)], check=True, timeout=PATIENCE)
    (site,) = home.glob("lib/python*/site-packages")
    (info,) = site.glob("capri_bandits-*.dist-info")
    linked(Distribution.at(info).requires or [], site)
    return python.parent


def check_files(wheel: Path, package: Path, *some: str) -> None:
    """Pages, studies, the type marker: every file of the package, and no other."""
    here = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    there = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert there == here
    assert not [name for name in there if "fault" in name]  # points of failure are for tests alone
    assert {f"{package.name}/{name}" for name in ("py.typed", *some)} < there


def check_quickstart(programs: Path, folder: Path) -> None:
    """A policy, and a device and its aggregator, as the pages write them."""
    checks = f"""
import importlib.util, json
print(json.dumps([name for name in {EXTRAS!r} if importlib.util.find_spec(name)]))
try:
    capri.PrivateKernelRidge
except ImportError as problem:
    print(problem)
print(capri.__file__)
"""
    start = blocks("README.md")[0]
    code = [start, blocks("docs/howto/devices.md")[0], checks]
    (folder / "quickstart.py").write_text("\n".join(code))
    printed = run(programs / "python", "-I", "quickstart.py", cwd=folder)
    extras, problem, place = printed.splitlines()
    assert json.loads(extras) == [], "premise: the environment has no extras"
    assert "capri-bandits[ridge]" in problem
    assert Path(place).is_relative_to(programs.parent)


def check_commands(programs: Path, folder: Path) -> None:
    assert "simulate" in run(programs / "capri", "--help", cwd=folder)
    size = ["--contexts", "5", "--actions", "4", "--rounds", "100", "--seeds", "1"]
    run(programs / "capri", "simulate", *size, "--json", "out.json", cwd=folder)
    assert json.loads((folder / "out.json").read_text())
    run(programs / "capri", "demo", "--rounds", "200", "--output", "demo.png", cwd=folder)
    assert (folder / "demo.png").exists()


def test_wheel_is_whole_and_works_without_extras(tmp_path: Path) -> None:
    """One test, so that one process builds and installs once for all that is asked."""
    wheel = build(ROOT, tmp_path)
    check_files(wheel, ROOT / "src" / "capri", "service/page/page.js")
    programs = install(wheel, tmp_path / "environment")
    check_quickstart(programs, tmp_path)
    check_commands(programs, tmp_path)


def test_wheel_of_the_laboratory_is_whole(tmp_path: Path) -> None:
    wheel = build(ROOT / "lab", tmp_path)
    check_files(wheel, ROOT / "lab/src/capri_lab", "report/report.html", "studies/rivals.toml")
