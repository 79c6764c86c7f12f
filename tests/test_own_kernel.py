"""A kernel of one's own: files and stores know it, and what is none is refused first."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import capri
from capri.errors import CapriError, ConfigurationError
from capri.kernels import BY_TYPE, RBF, Kernel, from_dict, register

ROWS = np.linspace(0, 1, 8)[:, None]


@dataclass(frozen=True)
class Periodic(Kernel):
    period: float = 1.0

    @property
    def constant_diagonal(self) -> float:
        return 1.0

    def _cross(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        apart = np.sin(np.pi * (left[:, None] - right[None]) / self.period)
        return np.exp(-2.0 * np.sum(apart**2, axis=2))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = dict(BY_TYPE)
    BY_TYPE.pop("Periodic", None)  # the example of ``register`` may have been run in this process
    yield
    BY_TYPE.clear()
    BY_TYPE.update(before)


def policy(kernel: Kernel, **changes: object) -> capri.Capri:
    settings = {
        "actions": ROWS, "contexts": capri.ContextPool(ROWS), "kernel": kernel,
        "budget": capri.Budget(1.0, 1e-5), "first_epoch": 40,
    }  # fmt: skip
    return capri.Capri(**(settings | changes))  # type: ignore[arg-type]


def played(made: capri.Capri) -> capri.Capri:
    decisions = made.act_many(np.tile(ROWS, (5, 1)))
    made.update_many(decisions, np.full(40, 0.3))
    made.close_epoch()
    return made


def test_files_stores_and_certificates_name_a_registered_kernel(tmp_path: Path) -> None:
    register(Periodic)
    kernel = Periodic(0.5) * RBF(lengthscale=2.0)
    first = played(policy(kernel))
    assert "1 releases" in repr(first.certificate())
    first.save(tmp_path / "policy.capri")
    again = capri.Capri.load(tmp_path / "policy.capri")
    assert again.kernel == kernel
    np.testing.assert_array_equal(again.estimate(ROWS), first.estimate(ROWS))
    address = f"sqlite:///{tmp_path / 'policy.db'}"
    stored = played(policy(kernel, store=address))
    stored.close()
    opened = policy(kernel, store=address)
    assert len(opened.epochs) == 1
    opened.close()


def test_a_kernel_that_no_file_could_name_is_refused_before_anything_is_learnt() -> None:
    for kernel in (Periodic(), Periodic() * RBF()):
        with pytest.raises(ConfigurationError, match=r"Periodic is your own.*kernels.register"):
            policy(kernel)
    with pytest.raises(ConfigurationError, match="registered first"):
        from_dict({"type": "Periodic", "period": 1.0})


def test_devices_refuse_a_kernel_they_cannot_compute() -> None:
    register(Periodic)
    with pytest.raises(CapriError, match="Periodic"):
        capri.LocalCapri(
            actions=ROWS,
            contexts=capri.ContextPool(ROWS),
            kernel=Periodic(),
            budget=capri.Budget(4.0),
        )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda values: values + np.triu(np.ones_like(values), 1) * 0.1, "must be symmetric"),
        (lambda values: values - 0.9, "positive semi-definite"),
        (lambda values: values * np.nan, "finite matrix"),
        (lambda values: values[:1], "one value for each pair"),
        (lambda values: values / max(1, len(values) - 1), "the same values alone|as its diagonal"),
        (lambda values: values * 0.5, "k\\(w, w\\) as its diagonal"),
    ],
)
def test_what_is_no_kernel_is_named(changed: object, said: str) -> None:
    @register
    @dataclass(frozen=True)
    class Broken(Periodic):
        def _cross(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
            return changed(super()._cross(left, right))  # type: ignore[no-any-return, operator]

    with pytest.raises(ConfigurationError, match=f"kernel Broken.*({said})"):
        policy(Broken())


def test_far_contexts_must_not_fail() -> None:
    @register
    @dataclass(frozen=True)
    class Far(Periodic):
        def _cross(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
            with np.errstate(over="ignore"):
                return np.exp(-np.sum((left[:, None] ** 4 - right[None] ** 4) ** 2, axis=2))

    with pytest.raises(ConfigurationError, match=r"Far must .*finite"):
        policy(Far())


def test_a_row_at_which_it_fails_is_served_and_stops_nobody() -> None:
    @register
    @dataclass(frozen=True)
    class Sudden(Periodic):
        def _cross(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
            if (left == 0.123456).any():
                raise ValueError("at one context")
            return super()._cross(left, right)

    made = policy(Sudden())
    odd = np.array([[0.123456]])
    for _ in range(3):  # under the first law, and under learnt ones
        rows = np.vstack([odd, np.tile(ROWS, (made.remaining // 8 + 1, 1))])[: made.remaining]
        decisions = made.act_many(rows)
        made.update_many(decisions, np.full(len(rows), 0.3))
        made.close_epoch()
    assert len(made.epochs) == 3
    assert made.act([0.123456]).status is not None


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (3, "derives from"),
        (type("RBF", (Periodic,), {}), "one of capri's own"),
        (type("Bare", (Kernel,), {}), "lacks _cross, constant_diagonal"),
        (dataclass(type("Soft", (), {"__annotations__": {"a": int}, "a": 1})), "derives from"),
    ],
)
def test_register_says_what_a_kernel_must_be(kind: type[Kernel], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        register(kind)
