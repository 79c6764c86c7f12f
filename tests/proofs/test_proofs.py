"""Every lemma of docs/proofs names its test, and that test fails where the lemma is broken.

A page is read line by line: below a lemma stand a test and what is planted. Each plant is run: the
module of the test is read anew with the product changed, and its test has to fail.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(Path(__file__).parent))
from plants import FAILURES, PLANTS, SLOW, Plant  # noqa: E402

PAGES = sorted(path for path in (ROOT / "docs/proofs").glob("*.md") if path.stem != "index")
_NUMBERS = count()
CACHED = type(lru_cache(int))


@dataclass(frozen=True)
class Lemma:
    """A test of a lemma, and what is planted to break it."""

    page: str
    number: int
    test: str
    planted: tuple[str, ...]


def lemmas(page: Path) -> Iterator[Lemma]:
    for block in re.split(r"^\*\*Lemma (?=\d+ )", page.read_text(), flags=re.MULTILINE)[1:]:
        number = int(block.split()[0])
        tests = re.findall(r"^\*Test:\* `([^`]+)`\.\n\*Planted:\* (.+)\.$", block, re.MULTILINE)
        assert tests, f"{page.stem}, lemma {number}: no test and nothing planted"
        for test, planted in tests:
            yield Lemma(page.stem, number, test, tuple(planted.split("; ")))


LEMMAS = [each for page in PAGES for each in lemmas(page)]
NAMED = [(each.page, each.number, words) for each in LEMMAS for words in each.planted]


def test_pages_number_their_lemmas_and_plants_are_those_of_the_pages() -> None:
    for page in PAGES:
        numbers = sorted({each.number for each in LEMMAS if each.page == page.stem})
        assert numbers == list(range(1, len(numbers) + 1)), page.stem
    assert len(PAGES) >= 11
    assert sorted(PLANTS) == sorted(NAMED)
    index = (ROOT / "docs/proofs/index.md").read_text()
    assert all(f"]({page.name})" in index for page in PAGES)


@pytest.mark.parametrize("lemma", LEMMAS, ids=lambda each: f"{each.page}-{each.number}")
def test_named_test_exists(lemma: Lemma) -> None:
    path, _, name = lemma.test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), lemma.test


def read_anew(path: str) -> ModuleType:
    """The module of a test as it is with whatever is planted, beside the one that pytest has."""
    name = f"planted_{Path(path).stem}_{next(_NUMBERS)}"
    spec = spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def forgetful() -> Iterator[None]:
    """What was computed before a plant is not used with it, nor what was computed with it later."""
    for turn in range(2):
        for name, module in list(sys.modules.items()):
            if name.startswith("capri.privacy."):
                for value in list(vars(module).values()):
                    if isinstance(value, CACHED):
                        value.cache_clear()
        if turn == 0:
            yield


def run(lemma: Lemma, plant: Plant, folder: Path, change: Callable[..., None] | None) -> None:
    path, _, name = lemma.test.partition("::")
    with forgetful(), pytest.MonkeyPatch.context() as patch:
        if change is not None and plant.before:
            change(patch)
        module = read_anew(path)
        if change is not None and not plant.before:
            change(patch, module)
        test = getattr(module, name)
        places = {
            "tmp_path": folder,
            "monkeypatch": patch,
            "url": f"sqlite:///{folder}/store.db",
            "urls": [f"sqlite:///{folder}/{place}.db" for place in range(2)],
        }
        wanted = inspect.signature(test).parameters
        given = plant.given(module) if callable(plant.given) else plant.given
        test(**{each: value for each, value in places.items() if each in wanted}, **given)


CASES = [
    pytest.param(each, words, id=f"{each.page}-{each.number}-{words}",
                 marks=[pytest.mark.slow] if (each.page, each.number) in SLOW else [])
    for each in LEMMAS for words in each.planted
]  # fmt: skip


@pytest.mark.parametrize(("lemma", "words"), CASES)
def test_planted_violation_is_seen(lemma: Lemma, words: str, tmp_path: Path) -> None:
    plant = PLANTS[lemma.page, lemma.number, words]
    with pytest.raises(FAILURES):
        run(lemma, plant, tmp_path, plant.change)


@pytest.mark.slow
@pytest.mark.parametrize(("lemma", "words"), CASES)
def test_without_it_the_test_passes(lemma: Lemma, words: str, tmp_path: Path) -> None:
    """Called as above: what fails there fails for what is planted."""
    run(lemma, PLANTS[lemma.page, lemma.number, words], tmp_path, None)
