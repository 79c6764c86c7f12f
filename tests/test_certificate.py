"""The certificate: complete, true, readable by people and machines, and refused to pretenders."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from importlib.metadata import version
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capri
from builders import play_epoch, small_policy
from capri.errors import ConfigurationError
from capri.privacy.calibration import delivered_epsilon
from capri.privacy.certificate import Certificate

SECRET_ID = "ada.lovelace@example.org"


def played(**changes: Any) -> capri.Capri:
    """A private policy after all four epochs."""
    policy = small_policy(**({"simulation_seed": None} | changes))
    while policy.remaining:
        play_epoch(policy)
    return policy


def played_with_ids(**changes: Any) -> capri.Capri:
    policy = small_policy(simulation_seed=None, contributions_per_user=3, **changes)
    for _ in range(2):
        users = [SECRET_ID, *range(policy.remaining - 1)]
        decisions = policy.act_many(np.zeros((len(users), 1)), users=users)
        policy.update_many(decisions, np.zeros(len(users)))
    return policy


# -- complete and true ----------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["joint", "local"])
@pytest.mark.parametrize("calibration", ["analytic", "paper"])
def test_every_field_of_the_issue_is_there_and_true(model: str, calibration: str) -> None:
    """Model, unit, budget, relation, assumptions, mechanism, sensitivity, noise, versions."""
    policy = played(model=model, calibration=calibration)
    told = policy.certificate().to_dict()
    assert told["model"] == model
    assert (told["epsilon"], told["delta"]) == (1.0, 1e-5)
    assert "one round of one user" in told["privacy_unit"]
    assert "replace one" in told["neighbouring_relation"]
    assert "discrete Gaussian" in told["mechanism"]
    assert "parallel" in told["composition"]
    assumptions = " / ".join(told["assumptions"])
    assert "in no other way does anybody's context or reward" in assumptions
    assert "one round at most" in assumptions
    assert "context pool" in assumptions
    assert "public" in assumptions
    # What was released is what the plans said, number by number.
    assert len(told["releases"]) == len(policy.epochs) == 4
    for release, record, event in zip(
        told["releases"], policy.epochs, policy.ledger.events, strict=True
    ):
        assert release["epoch"] == record.epoch
        assert release["decisions"] == record.length
        assert release["coordinates"] == record.rank
        assert release["noise"] == record.noise_scale == event.noise_scale
        assert release["sensitivity"] == event.sensitivity
        assert release["calibration"] == calibration
        multiplier = release["noise"] / release["sensitivity"]
        assert release["epsilon"] == pytest.approx(delivered_epsilon(1 / multiplier, 1e-5))
        assert release["epsilon"] <= 1.0
    dearest = max(release["epsilon"] for release in told["releases"])
    assert told["spent"]["epsilon"] == pytest.approx(dearest, abs=1e-9)
    assert told["spent"]["delta"] == 1e-5
    if calibration == "analytic":
        assert told["spent"]["epsilon"] == pytest.approx(1.0, abs=1e-6)
    else:
        assert told["spent"]["epsilon"] < 0.2, "the paper's noise delivers far more than it says"
    assert told["versions"]["capri-bandits"] == capri.__version__
    for name in ("opendp", "numpy", "scipy"):
        assert told["versions"][name] == version(name)


def test_trust_is_told_apart() -> None:
    """Joint: the curator is trusted. Local: only the process that makes the reports."""
    joint, local = (
        small_policy(simulation_seed=None, model=m).certificate() for m in ("joint", "local")
    )
    assert "trusted" in joint.statement
    assert "curator sees the data" in joint.statement
    assert "before it is summed" in local.statement
    assert "runs on the user's device" in " ".join(local.assumptions)
    assert joint.assumptions != local.assumptions


@pytest.mark.parametrize(("model", "factor"), [("joint", sqrt(3)), ("local", sqrt(3))])
def test_users_who_come_back_are_the_unit(model: str, factor: float) -> None:
    told = played_with_ids(model=model).certificate()
    assert "one user" in told.privacy_unit
    assert "3 contributions" in told.privacy_unit
    assert "1 per epoch" in told.privacy_unit
    assert "composition" in told.composition
    assert f"{factor:g}" in told.composition
    assert any("limit per user is enforced" in text for text in told.assumptions)
    assert told.spent["epsilon"] <= 1.0


def test_before_the_first_release_nothing_is_spent() -> None:
    told = small_policy(simulation_seed=None).certificate()
    assert told.releases == ()
    assert told.spent["epsilon"] == 0.0
    assert "None yet." in told.to_text()
    assert "nobody has spent anything" in told.to_text()
    assert "None yet." in told.to_html()
    assert 'class="releases"' not in told.to_html()


def test_certificate_is_a_snapshot() -> None:
    policy = small_policy(simulation_seed=None)
    before = policy.certificate()
    play_epoch(policy)
    assert before.releases == ()
    assert len(policy.certificate().releases) == 1
    with pytest.raises(AttributeError):
        before.epsilon = 0.1  # type: ignore[misc]


def test_certificate_is_the_same_after_a_restart(tmp_path: Path) -> None:
    policy = played(calibration="analytic")
    policy.save(tmp_path / "policy")
    assert capri.Capri.load(tmp_path / "policy").certificate() == policy.certificate()


# -- forms ----------------------------------------------------------------------------------------


def test_json_round_trip() -> None:
    told = played(calibration="analytic").certificate()
    values = json.loads(told.to_json())
    again = Certificate.from_dict(values)
    assert again == told
    assert json.loads(again.to_json()) == values
    # Strict JSON: no NaN, no infinity.
    json.dumps(values, allow_nan=False)


class Page(HTMLParser):
    """Text of a page; remembers open elements and everything that would be fetched."""

    VOID = ("meta", "br", "hr", "img", "link", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.seen: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.fetched += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> is out of place"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def cells(told: Certificate) -> list[str]:
    """What a reader must find: every number and every sentence."""
    numbers = [
        f"{value:.6g}" if isinstance(value, float) else str(value)
        for release in told.releases
        for value in release.values()
    ]
    sentences = [
        told.model,
        told.statement,
        told.privacy_unit,
        told.neighbouring_relation,
        told.protects,
        told.protects_from,
        told.presence,
        *told.not_protected,
        *told.kept_by,
        told.spent_means,
        told.digest,
        told.mechanism,
        told.composition,
        *told.assumptions,
        *told.versions.values(),
        f"({told.epsilon:g}, {told.delta:g})-differential privacy",
        f"epsilon {told.spent['epsilon']:.6g}",
    ]
    return [*numbers, *sentences, *(told.releases[0] if told.releases else ())]


@pytest.mark.parametrize("model", ["joint", "local"])
def test_text_holds_everything(model: str) -> None:
    told = played(model=model).certificate()
    text = told.to_text()
    for cell in cells(told):
        assert cell in text


@pytest.mark.parametrize("policy", [played, played_with_ids])
def test_page_is_well_formed_holds_everything_and_fetches_nothing(policy: Any) -> None:
    told = policy().certificate()
    page = Page()
    page.feed(told.to_html())
    page.close()
    assert page.open == []
    assert page.fetched == []
    assert {"html", "title", "h1", "h2", "ul", "dl", "table", "style"} <= set(page.seen)
    columns = len(told.releases[0])
    # Four beliefs before and two columns of beliefs after; assumptions and who keeps them.
    assert page.seen.count("tr") == 1 + len(told.releases) + 5 + 1 + len(told.assumptions)
    assert page.seen.count("th") == columns + 3 + 2
    assert page.seen.count("td") == columns * len(told.releases) + 12 + 2 * len(told.assumptions)
    assert page.seen.count("li") == 1 + len(told.not_protected)
    text = "\n".join(page.text)
    for cell in cells(told):
        assert cell in text
    for outside in ("http:", "https:", "url(", "@import", "<script>", "<script src"):
        assert outside not in told.to_html()
    assert told.to_html().count("<script") == 1, "data that no browser runs"
    assert "**" not in text, "no Markdown is left over"


def test_page_escapes_what_it_is_given() -> None:
    told = small_policy(simulation_seed=None).certificate()
    hostile = replace(told, protects="<script>alert('&')</script>")
    assert "<script>" not in hostile.to_html()
    assert hostile.to_html().count("</script>") == 1
    page = Page()
    page.feed(hostile.to_html())
    assert "alert('&')" in "".join(page.text)


def test_file_follows_its_name(tmp_path: Path) -> None:
    told = small_policy(simulation_seed=None).certificate()
    forms = {"a.json": told.to_json(), "a.html": told.to_html(), "a.md": told.to_text()}
    for name, content in forms.items():
        told.save(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8") == content


# -- refusals and silence -------------------------------------------------------------------------


def test_no_certificate_without_a_budget() -> None:
    with pytest.raises(ConfigurationError, match="runs without privacy"):
        small_policy(simulation_seed=None, budget=None).certificate()


def test_no_certificate_for_a_simulation() -> None:
    policy = small_policy(simulation_seed=3)
    play_epoch(policy)
    with pytest.raises(ConfigurationError, match="simulation draws seeded noise"):
        policy.certificate()


def test_no_certificate_for_a_simulation_after_a_restart(tmp_path: Path) -> None:
    small_policy(simulation_seed=3).save(tmp_path / "policy")
    with pytest.raises(ConfigurationError, match="simulation draws seeded noise"):
        capri.Capri.load(tmp_path / "policy").certificate()


def test_no_data_in_the_certificate() -> None:
    """Planted context, reward and id; and what users did does not change a byte of it.

    The plan depends on public draws, which differ between private runs, so only before the first
    release are two certificates comparable; after it, numbers come from plan and ledger alone.
    """
    context, reward = 0.731952846, 0.418273645
    told = []
    for value in (reward, -reward):
        policy = small_policy(simulation_seed=None, contributions_per_user=1)
        decision = policy.act([context], user=SECRET_ID)
        policy.update(decision, value)
        told.append(policy.certificate())
    assert told[0] == told[1]
    policy = played_with_ids()
    last = policy.act([context], user="someone")
    policy.update(last, reward)
    for form in (told[0], policy.certificate()):
        everything = form.to_json() + form.to_text() + form.to_html() + repr(form)
        for planted in ("731952", "418273", SECRET_ID, "someone", "lovelace"):
            assert planted not in everything
