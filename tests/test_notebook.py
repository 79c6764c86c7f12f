"""Results show themselves in a few lines, and stay what they are."""

import pickle

import pytest

import capri
from capri.epoch.plan import Epochs
from capri.files import html_table


@pytest.fixture(scope="module")
def policy() -> capri.Capri:
    return capri.Capri(
        kernel=capri.kernels.RBF(lengthscale=0.3),
        actions=[[0.0], [0.5], [1.0]],
        contexts=capri.ContextPool([[0.0], [1.0]]),
        budget=capri.Budget(epsilon=4.0, delta=1e-5),
        horizon=300,
    )


@pytest.fixture(scope="module")
def result(policy: capri.Capri) -> capri.SimulationResult:
    assert repr(policy.epochs) == "no epoch is closed yet"
    world = capri.environments.random_rkhs(
        capri.kernels.RBF(lengthscale=0.3), contexts=2, actions=3, seed=0
    )
    return capri.simulate(policy, world, 300)


def test_a_result_shows_its_ratio(result: capri.SimulationResult) -> None:
    assert f"ratio to uniform play {result.ratio:.3g}" in repr(result)
    assert repr(result).startswith("SimulationResult(rounds 300, regret per round ")
    assert len(repr(result)) < 150
    assert f"<td>{result.ratio:.3g}</td>" in result._repr_html_()


def test_epochs_are_a_tuple_that_is_shown_as_a_table(
    policy: capri.Capri, result: capri.SimulationResult
) -> None:
    epochs = policy.epochs
    assert epochs == tuple(epochs) == result.epochs
    assert isinstance(pickle.loads(pickle.dumps(epochs)), Epochs)
    head, *lines = repr(epochs).splitlines()
    assert head.split()[:4] == ["epoch", "rounds", "rank", "noise"]
    assert [int(line.split()[1]) for line in lines] == [record.length for record in epochs]
    assert len({len(line) for line in (head, *lines)}) == 1
    assert epochs._repr_html_().count("<tr>") == 1 + len(epochs)


def test_a_certificate_folds(policy: capri.Capri, result: capri.SimulationResult) -> None:
    certificate = policy.certificate()
    assert repr(certificate).startswith("Certificate((4, 1e-05)-differential privacy, joint model")
    assert f"{len(policy.epochs)} releases" in repr(certificate)
    shown = certificate._repr_html_()
    assert shown.startswith("<details><summary>Certificate(")
    assert "Assumptions" in shown
    assert "<style>" not in shown
    assert "<html" not in shown


def test_names_are_text_in_a_table() -> None:
    assert html_table([{"<b>": "&", "empty": None}]) == (
        "<table><tr><th>&lt;b&gt;</th></tr><tr><td>&amp;</td></tr></table>"
    )
