"""Verification: every change of content is found, and a certificate belongs to one run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import capri
from builders import play_epoch, small_policy
from capri.cli import app
from capri.errors import StorageError
from capri.files import canonical, digest_of
from capri.privacy.certificate import Certificate
from capri.privacy.certificate.verify import certificate_schema, check_schema, verified
from certificate_mutations import MUTATIONS, mutations


def policy_after(epochs: int, **changes: Any) -> capri.Capri:
    policy = small_policy(**({"simulation_seed": None} | changes))
    for number in range(epochs):
        play_epoch(policy, number)
    return policy


@pytest.fixture(scope="module")
def told() -> Certificate:
    return policy_after(2).certificate(
        declaration=capri.Declaration(organisation="Zoë & Søn <A/S>", date="2026-11-16")
    )


def content(raw: bytes) -> str | None:
    """What a JSON file says in canonical form; None where it is none, or says a name twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError
        return dict(pairs)

    try:
        return canonical(json.loads(raw.decode(), object_pairs_hook=once))
    except ValueError:
        return None


def test_every_mutation_of_the_content_is_refused(told: Certificate) -> None:
    """Of JSON only blanks between tokens, and other spellings of a number, do not matter."""
    raw = told.to_json().encode()
    assert verified(raw) == told
    harmless = 0
    for changed in mutations(raw, seed=1):
        if content(changed) == content(raw):
            harmless += 1
            assert verified(changed) == told
        else:
            with pytest.raises(StorageError):
                verified(changed)
    # Blanks are about a seventh of an indented file: most mutations are of content.
    assert harmless < MUTATIONS / 3


@pytest.mark.slow
def test_every_mutation_of_the_page_is_refused(told: Certificate) -> None:
    """Every byte matters: a reader must see what the digest covers."""
    raw = told.to_html().encode()
    assert verified(raw) == told
    for changed in mutations(raw, seed=2):
        with pytest.raises(StorageError):
            verified(changed)


def test_each_value_is_covered_by_the_digest(told: Certificate) -> None:
    """Without one value, with one changed, with one more: never the same digest, never verified."""
    values = told.to_dict()
    for name in values:
        without = {key: value for key, value in values.items() if key != name}
        for changed in (without, values | {name: "something else"}, values | {name + "2": 1}):
            with pytest.raises(StorageError):
                verified(json.dumps(changed).encode())


def test_schema_is_checked_even_with_a_fitting_digest(told: Certificate) -> None:
    """Somebody who recomputes the digest still has to write a certificate."""
    for change in (
        {"epsilon": "1"},
        {"epsilon": -1.0},
        {"delta": 2},
        {"kept_by": []},
        {"kept_by": list(told.kept_by)[:-1]},
        {"releases": [{"epoch": 1}]},
        {"model": "trust me"},
        {"schema": "urn:capri:certificate:2"},
        {"declaration": told.declaration | {"date": "soon"}},
        {"digests": {"configuration": "ab", "plans": []}},
        {"extra": 1},
    ):
        body = {k: v for k, v in told.to_dict().items() if k != "digest"} | change
        with pytest.raises(StorageError, match=r"schema|who keeps"):
            verified(json.dumps(body | {"digest": digest_of(body)}).encode())


def test_page_and_data_of_two_certificates_do_not_mix(told: Certificate) -> None:
    """A page whose data are whole but other than what it shows."""
    other = replace(told, epsilon=0.1)
    mine, theirs = told.to_html(), other.to_html()
    start = '<script type="application/json"'
    mixed = mine.partition(start)[0] + start + theirs.partition(start)[2]
    with pytest.raises(StorageError, match="does not show what its own data say"):
        verified(mixed.encode())


def test_page_of_another_version_is_not_called_forged(told: Certificate) -> None:
    older = replace(told, versions=told.versions | {"capri-bandits": "0.0.9"})
    text = older.to_html()
    assert verified(text.encode()) == older
    with pytest.raises(StorageError, match=r"made by capri 0\.0\.9"):
        verified(text.replace("<h1>", "<h1 >").encode())


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[]", b"null", b"<html></html>", b"\xff", b"[" * 99_999]
)
def test_what_is_no_certificate_is_refused(raw: bytes) -> None:
    with pytest.raises(StorageError):
        verified(raw)


@pytest.mark.parametrize("make", [
    lambda: policy_after(0).certificate(),
    lambda: policy_after(2, model="local", calibration="analytic").certificate(),
    lambda: small_policy(simulation_seed=None, contributions_per_user=2).certificate(),
])  # fmt: skip
def test_every_certificate_follows_the_schema(make: Any) -> None:
    told = make()
    check_schema(json.loads(told.to_json()), certificate_schema())
    assert verified(told.to_json().encode()) == told
    assert verified(told.to_html().encode()) == told


def test_a_schema_with_unknown_words_is_refused() -> None:
    with pytest.raises(StorageError, match="'oneOf', which is not known"):
        check_schema(1, {"oneOf": []})
    with pytest.raises(StorageError, match="type is 'number'"):
        check_schema(True, {"type": "number"})


# -- against a saved policy -----------------------------------------------------------------------


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["certificate", "verify", *map(str, arguments)])


def test_command_verifies_both_forms(told: Certificate, tmp_path: Path) -> None:
    for name in ("a.json", "a.html"):
        told.save(tmp_path / name)
        done = run(tmp_path / name)
        assert done.exit_code == 0, done.output
        assert told.digest in done.stdout
        assert "issued by: Zoë & Søn <A/S>" in done.stdout
        raw = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(raw.replace(b"1e-05", b"1e-06"))
        done = run(tmp_path / name)
        assert done.exit_code == 1
        assert "not verified: " in done.stderr
    assert run(tmp_path / "absent.json").exit_code == 1


def test_certificate_belongs_to_its_policy(tmp_path: Path) -> None:
    policy = policy_after(2)
    told, saved = tmp_path / "told.json", tmp_path / "policy.capri"
    policy.certificate().save(told)
    policy.save(saved)
    assert "none since" in run(told, "--policy", saved).stdout
    # The run goes on, over a restart too: an earlier certificate is still its own.
    again = capri.Capri.load(saved)
    play_epoch(again)
    again.save(saved)
    done = run(told, "--policy", saved)
    assert done.exit_code == 0
    assert "1 since" in done.stdout
    # A later certificate is not that of an earlier file.
    later = tmp_path / "later.json"
    play_epoch(again)
    again.certificate().save(later)
    done = run(later, "--policy", saved)
    assert done.exit_code == 1
    assert "older than the certificate" in done.stderr


def test_certificate_of_another_policy_is_refused(tmp_path: Path) -> None:
    told, saved = tmp_path / "told.json", tmp_path / "policy.capri"
    policy_after(1).certificate().save(told)
    policy_after(1, preset="practical", first_epoch=8).save(saved)
    assert "configurations differ" in run(told, "--policy", saved).stderr
    for change in ({"horizon": 61}, {"reward_bound": 2.0}, {"actions": [[0.0], [0.5], [0.9]]},
                   {"budget": capri.Budget(1.0, 2e-5)}, {"calibration": "analytic"}):  # fmt: skip
        saved.unlink()  # a policy does not write over another one's file
        small_policy(simulation_seed=None, **change).save(saved)
        assert "configurations differ" in run(told, "--policy", saved).stderr, change
    # The same settings, but other public draws: another run.
    policy_after(2).certificate().save(told)
    saved.unlink()
    policy_after(2).save(saved)
    assert "plans of release 1 differ" in run(told, "--policy", saved).stderr
