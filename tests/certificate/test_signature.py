"""Signatures: one changed byte of either file is found, and another's key is not ours."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import capri
from builders import small_policy
from capri.cli import app
from capri.errors import ConfigurationError, StorageError
from capri.privacy.certificate.verify import (
    check_signature,
    make_keys,
    read_certificate,
    sign,
    verify_file,
)
from certificate_mutations import mutations
from stored_policies import policy

ORGANISATION = capri.Declaration(organisation="Ada's Clinic", purpose="reminders")


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A certificate with its signature, and the keys beside it."""
    file = tmp_path / "certificate.json"
    small_policy(simulation_seed=None).certificate(declaration=ORGANISATION).save(file)
    make_keys(tmp_path / "private.pem", tmp_path / "public.pem")
    assert sign(file, tmp_path / "private.pem") == tmp_path / "certificate.json.sig"
    return file


def test_every_changed_byte_of_either_file_is_found(signed: Path) -> None:
    content, signature = signed.read_bytes(), Path(f"{signed}.sig").read_bytes()
    name = check_signature(content, signature, signed.parent / "public.pem")
    assert len(name) == 64
    for changed in mutations(content, 1):
        with pytest.raises(StorageError):
            check_signature(changed, signature)
    for changed in mutations(signature, 2):
        with pytest.raises(StorageError):
            check_signature(content, changed, signed.parent / "public.pem")


def test_the_key_of_another_is_refused(signed: Path) -> None:
    """Whoever forges a certificate can sign it, too: with a key of their own."""
    other = signed.parent / "other.pem"
    make_keys(signed.parent / "theirs.pem", other)
    sign(signed, signed.parent / "theirs.pem")
    content, signature = signed.read_bytes(), Path(f"{signed}.sig").read_bytes()
    assert check_signature(content, signature) == check_signature(content, signature, other)
    with pytest.raises(StorageError, match="not the one in"):
        check_signature(content, signature, signed.parent / "public.pem")


def test_keys_are_kept_safe_and_not_written_over(signed: Path) -> None:
    private = signed.parent / "private.pem"
    assert private.stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigurationError, match="already"):
        make_keys(private, signed.parent / "again.pem")
    with pytest.raises(ConfigurationError, match="no private key"):
        sign(signed, signed.parent / "public.pem")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_other_tools_verify_the_same_signature(signed: Path) -> None:
    told = json.loads(Path(f"{signed}.sig").read_text())
    raw = signed.parent / "raw.sig"
    raw.write_bytes(bytes.fromhex(told["signature"]))
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "public.pem", "-rawin",
               "-in", signed.name, "-sigfile", raw.name]  # fmt: skip
    done = subprocess.run(command, cwd=signed.parent, capture_output=True, text=True)
    assert "Verified Successfully" in done.stdout, done.stderr


def test_the_command_says_what_holds(signed: Path) -> None:
    run, public = CliRunner(), str(signed.parent / "public.pem")
    good = run.invoke(app, ["certificate", "verify", str(signed), "--public-key", public])
    assert good.exit_code == 0
    assert "self-issued" in good.output
    assert "the key given" in good.output
    signed.write_text(signed.read_text() + " ")  # the same content in other bytes
    assert run.invoke(app, ["certificate", "verify", str(signed)]).exit_code == 1
    Path(f"{signed}.sig").unlink()
    assert run.invoke(app, ["certificate", "verify", str(signed)]).exit_code == 0
    asked = ["certificate", "verify", str(signed), "--public-key", public]
    assert run.invoke(app, asked).exit_code == 1


@pytest.fixture
def signed_text(tmp_path: Path) -> Path:
    """A certificate as Markdown, which carries no data, with its signature."""
    file = tmp_path / "certificate.md"
    small_policy(simulation_seed=None).certificate(declaration=ORGANISATION).save(file)
    make_keys(tmp_path / "private.pem", tmp_path / "public.pem")
    sign(file, tmp_path / "private.pem")
    return file


def test_any_bytes_that_were_signed_are_verified(signed_text: Path) -> None:
    """`sign` takes any file, so `verify` does, too: by its signature alone."""
    run, public = CliRunner(), str(signed_text.parent / "public.pem")
    asked = ["certificate", "verify", str(signed_text), "--public-key", public]
    done = run.invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "every byte is as it was signed" in done.output
    assert "the key given" in done.output
    # What compares content needs the content.
    for more in ("--policy", "--ledger"):
        done = run.invoke(app, [*asked, more, "somewhere"])
        assert done.exit_code == 1
        assert "give its JSON or its page" in done.stderr
    for content in (b"", bytes(range(256)), "Zoë".encode("utf-16")):
        signed_text.write_bytes(content)
        sign(signed_text, signed_text.parent / "private.pem")
        assert run.invoke(app, asked).exit_code == 0, content
    Path(f"{signed_text}.sig").unlink()
    done = run.invoke(app, asked[:3])
    assert done.exit_code == 1
    assert "verified by its signature, " in done.stderr


def test_a_signature_does_not_stand_for_content(signed: Path) -> None:
    """Of forms that carry their data these are read all the same, whoever signed them."""
    for content in (b"{}", b"  <html></html>", signed.read_bytes().replace(b"1e-05", b"1e-06")):
        signed.write_bytes(content)
        sign(signed, signed.parent / "private.pem")
        assert CliRunner().invoke(app, ["certificate", "verify", str(signed)]).exit_code == 1


def test_every_changed_byte_of_a_signed_text_is_found(signed_text: Path) -> None:
    content = signed_text.read_bytes()
    assert verify_file(signed_text)[0] is None
    for changed in mutations(content, 3):
        signed_text.write_bytes(changed)
        with pytest.raises(StorageError):
            verify_file(signed_text)


def test_the_file_is_read_once(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is verified is what was signed, also where somebody writes in between."""
    opened: list[str] = []
    true_open = Path.open

    def counted(path: Path, *arguments: Any, **options: Any) -> Any:
        opened.append(path.name)
        return true_open(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", counted)
    monkeypatch.setattr(Path, "read_bytes", lambda path: counted(path, "rb").read())
    assert CliRunner().invoke(app, ["certificate", "verify", str(signed)]).exit_code == 0
    assert opened.count("certificate.json") == 1
    assert opened.count("certificate.json.sig") == 1


def test_a_certificate_states_the_total_of_its_population(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    with capri.OrganisationLedger(url, organisation="Ada's Clinic") as ledger:
        ledger.add_population("patients", capri.Budget(3.0, 1e-5), period="year")
        place = {"ledger": ledger, "population": "patients", "budget": capri.Budget(1.0, 1e-6)}
        with policy(f"sqlite:///{tmp_path}/p.db", **place) as opened:
            told = opened.certificate(declaration=ORGANISATION)
    assert told.in_total is not None
    assert told.in_total["reserved"]["epsilon"] == 1.0
    for form in (told.to_text(), told.to_html()):
        assert "In total" in form
        assert "patients, of Ada" in form
        assert "Self-issued" in form
    told.save(tmp_path / "certificate.html")
    assert read_certificate(tmp_path / "certificate.html") == told
