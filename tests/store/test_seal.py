"""The seal: values come back in their own place only, and a wrong key is told from damage."""

import pickle
import subprocess
import sys
import time

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from capri.errors import ConfigurationError, StorageError
from capri.store.seal import OVERHEAD, Seal

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
ROWS = st.one_of(st.integers(), st.text(), st.binary())


@settings(max_examples=25)
@given(value=st.binary(), row=ROWS, table=st.text(), column=st.text(), line=st.text())
def test_a_value_comes_back(value: bytes, row: int, table: str, column: str, line: str) -> None:
    stored = Seal(KEY, line).seal(table, row, column, value)
    assert len(stored) == len(value) + OVERHEAD
    assert Seal(KEY, line).open(table, row, column, stored) == value


@given(value=st.binary())
def test_without_a_key_values_stay_as_they_are(value: bytes) -> None:
    """Whatever they look like: a sealed-looking value of a user is no reason to refuse."""
    plain = Seal(None, "line")
    assert plain.seal("rewards", 1, "value", value) == value
    assert plain.open("rewards", 1, "value", value) == value
    sealed = Seal(KEY, "line").seal("rewards", 1, "value", value)
    assert plain.open("rewards", 1, "value", sealed) == sealed


@pytest.mark.parametrize(
    ("line", "table", "row", "column"),
    [
        ("other", "rewards", 7, "value"),
        ("line", "decisions", 7, "value"),
        ("line", "rewards", 8, "value"),
        ("line", "rewards", "7", "value"),
        ("line", "rewards", b"7", "value"),
        ("line", "rewards", 7, "pair"),
        ("line", "reward", 7, "svalue"),  # the same letters, divided elsewhere
    ],
)
def test_a_value_opens_in_its_own_place_only(line: str, table: str, row: int, column: str) -> None:
    stored = Seal(KEY, "line").seal("rewards", 7, "value", b"secret")
    with pytest.raises(StorageError):
        Seal(KEY, line).open(table, row, column, stored)


def test_any_changed_bit_is_noticed() -> None:
    seal = Seal(KEY, "line")
    stored = seal.seal("rewards", 7, "value", b"secret")
    for place in range(8 * len(stored)):
        changed = bytearray(stored)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(StorageError):
            seal.open("rewards", 7, "value", bytes(changed))
    for length in range(len(stored)):
        with pytest.raises(StorageError, match="damaged"):
            seal.open("rewards", 7, "value", stored[:length])


def test_a_wrong_key_is_told_from_damage() -> None:
    stored = Seal(KEY, "line").seal("rewards", 7, "value", b"secret")
    with pytest.raises(StorageError, match="sealed under the key with identifier") as wrong:
        Seal(OTHER, "line").open("rewards", 7, "value", stored)
    assert Seal(KEY, "line").identifier.hex() in str(wrong.value)
    with pytest.raises(StorageError, match="damaged or was moved"):
        Seal(KEY, "line").open("rewards", 7, "value", stored[:-1] + b"\0" * 2)
    with pytest.raises(StorageError, match="written without store_key"):
        Seal(KEY, "line").open("rewards", 7, "value", b"a plain value, long enough for a seal")


def test_identifiers_name_key_and_line_and_not_the_key() -> None:
    lines = [Seal(KEY, "a").identifier, Seal(KEY, "b").identifier, Seal(OTHER, "a").identifier]
    assert len(set(lines)) == 3
    assert all(each not in KEY + OTHER for each in lines)
    assert Seal(KEY, "a").identifier == lines[0]
    assert Seal(None, "a").identifier == b""


def test_equal_values_are_stored_unequal() -> None:
    """A nonce is never used twice, within a batch or across seals."""
    sealed = Seal(KEY, "line").seal_many("rewards", [7] * 500, "value", [b"1"] * 500)
    sealed += Seal(KEY, "line").seal_many("rewards", [7] * 500, "value", [b"1"] * 500)
    assert len({each[9:21] for each in sealed}) == len(set(sealed)) == 1000


def test_the_stored_form_is_what_the_docstring_says() -> None:
    """A second implementation of the format: whoever has the key can read without this package."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    def joined(*parts: str) -> bytes:
        return b"".join(len(part).to_bytes(4, "big") + part.encode() for part in parts)

    def derived(length: int, *purpose: str) -> bytes:
        info = joined("capri store seal", "line", *purpose)
        return HKDF(SHA256(), length, salt=None, info=info).derive(KEY)

    stored = Seal(KEY, "line").seal("rewards", 7, "value", b"secret")
    head, nonce, rest = stored[:9], stored[9:21], stored[21:]
    assert head == b"\x01" + derived(8, "identifier")
    cipher = AESGCM(derived(32, "column", "rewards", "value"))
    assert cipher.decrypt(nonce, rest, head + joined("line", "rewards", "value") + b"i7") == (
        b"secret"
    )


def test_a_batch_is_its_rows_one_by_one() -> None:
    seal, rows = Seal(KEY, "line"), list(range(20))
    values = [bytes([row]) * row for row in rows]
    stored = seal.seal_many("rewards", rows, "value", values)
    assert [seal.open("rewards", row, "value", stored[row]) for row in rows] == values
    assert seal.open_many("rewards", rows, "value", [memoryview(each) for each in stored]) == values
    with pytest.raises(ValueError, match="argument"):
        seal.seal_many("rewards", rows[:-1], "value", values)


def test_a_batch_of_a_thousand_is_fast() -> None:
    """It must not weigh beside writing the rows: 20 ms is what a slow disk takes to sync once."""
    seal, rows, values = Seal(KEY, "line"), list(range(1000)), [bytes(64)] * 1000
    best = 1.0
    for _ in range(5):
        start = time.process_time()
        seal.open_many("rewards", rows, "value", seal.seal_many("rewards", rows, "value", values))
        best = min(best, time.process_time() - start)
    assert best < 0.02


@pytest.mark.parametrize("key", [b"", b"k" * 31, b"k" * 33, "k" * 32, 7, bytearray(32)])
def test_a_key_is_32_bytes_and_never_quoted(key: object) -> None:
    with pytest.raises(ConfigurationError, match="32 random bytes") as refused:
        Seal(key, "line")  # type: ignore[arg-type]
    assert "k" * 31 not in str(refused.value)


def test_errors_and_repr_show_neither_key_nor_value() -> None:
    seal = Seal(KEY, "line")
    stored = seal.seal("rewards", 7, "value", b"a secret of somebody")
    shown = repr(seal)
    for line in ("other", "line"):
        with pytest.raises(StorageError) as refused:
            Seal(KEY, line).open("rewards", 9, "value", stored)
        shown += str(refused.value) + repr(refused.value.__cause__)
    assert "somebody" not in shown
    assert KEY.hex() not in shown
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(seal)


def test_without_a_key_the_library_is_not_needed() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from capri.store.seal import Seal\n"
        "from capri.errors import MissingExtraError\n"
        "assert Seal(None, 'line').open('t', 1, 'c', b'v') == b'v'\n"
        "try: Seal(bytes(32), 'line')\n"
        "except MissingExtraError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'capri-bandits[store]'" in said.stdout
