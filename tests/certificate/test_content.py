"""What a certificate says: who promises, what is not covered, whose budget, which evidence."""

import datetime
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capri
from builders import ACTIONS, CONTEXTS, play_epoch, small_policy
from capri.errors import ConfigurationError
from capri.privacy.budget import PrivacyModel
from capri.privacy.certificate import Certificate, certify_policy
from capri.privacy.certificate.beliefs import in_words, likely
from capri.privacy.ledger import Ledger
from stored_policies import policy

AUDIT = {
    "model": "joint", "delta": 1e-5, "confidence": 0.999, "passed": True,
    "claimed": {"epsilon": 1.0, "mu": 0.27}, "proven": {"epsilon": 0.91, "mu": 0.25},
}  # fmt: skip


def aggregator(**changes: Any) -> capri.LocalCapri:
    settings: dict[str, Any] = {
        "kernel": capri.kernels.Matern(nu=2.5, lengthscale=0.4),
        "actions": ACTIONS,
        "contexts": capri.ContextPool(CONTEXTS),
        "budget": capri.Budget(4.0, 1e-5),
        "horizon": 60,
        "first_epoch": 10,
    }
    return capri.LocalCapri(**(settings | changes))


def fitted() -> capri.PrivateKernelRidge:
    X = np.linspace(0, 1, 400)[:, None]
    ridge = capri.PrivateKernelRidge(epsilon=2.0, X_bounds=(0, 1), y_bounds=(-1, 1))
    return ridge.fit(X, np.sin(6 * X[:, 0]))


def all_kinds() -> list[Certificate]:
    return [
        small_policy(simulation_seed=None).certificate(),
        small_policy(simulation_seed=None, model="local").certificate(),
        small_policy(simulation_seed=None, contributions_per_user=3).certificate(),
        aggregator().certificate(),
        fitted().certificate(),
    ]


def test_statement_of_every_kind_has_the_words_of_its_table() -> None:
    mixed = aggregator(
        budget=capri.Budget(1.0, 1e-6), shuffle=capri.Shuffle(most=4.0), horizon=None
    )
    for told in (*all_kinds(), mixed.certificate()):
        assert in_words(told.beliefs) in told.statement
        assert likely(told.beliefs) in told.statement
        assert in_words(told.beliefs) in told.to_text()
    promised = small_policy(simulation_seed=None, budget=capri.Budget(20.0, 1e-5)).certificate()
    assert "almost" not in promised.statement
    assert "hardly any protection" in promised.statement


def test_what_is_not_declared_is_not_invented() -> None:
    told = small_policy(simulation_seed=None).certificate()
    assert set(told.declaration.values()) == {None}
    for text in (told.to_text(), told.to_html()):
        assert text.count("not declared") == 4
    declared = capri.Declaration(
        organisation="  Ada's\n Clinic ", contact="privacy@clinic.example", purpose="reminders",
        date=datetime.date(2026, 11, 16),
    )  # fmt: skip
    told = small_policy(simulation_seed=None).certificate(declaration=declared)
    assert told.declaration["organisation"] == "Ada's Clinic"
    assert told.declaration["date"] == "2026-11-16"
    assert "not declared" not in told.to_html()
    assert "Ada&#x27;s Clinic" in told.to_html()


@pytest.mark.parametrize(
    ("name", "value"),
    [("organisation", 3), ("contact", " "), ("purpose", "x" * 301), ("date", "soon"), ("date", 7)],
)
def test_declarations_are_checked(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        capri.Declaration(**{name: value})


def test_declaration_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"must be a capri\.Declaration, got dict"):
        small_policy(simulation_seed=None).certificate(declaration={"organisation": "x"})


def test_every_kind_says_what_is_not_covered_and_who_keeps_what() -> None:
    for told in all_kinds():
        assert told.presence.startswith("Taking part is not covered: ")
        assert len(told.not_protected) >= 3
        assert len(told.kept_by) == len(told.assumptions) >= 5
        assert set(told.kept_by) <= {"operator", "engineer", "user's device"}
        assert "even with every other" in told.protects_from
        assert "not declared" in told.to_text()
        assert told.digests["configuration"] is not None
        assert (told.independent_account is None) == (told.delta == 0)


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (0, "All releases so far were ready then; "),
        (1, "1 of the releases so far was late; "),
        (3, "3 of the releases so far were late; "),
    ],
)
def test_lateness_of_a_store_is_counted_and_its_cause_assumed(late: int, said: str) -> None:
    found = certify_policy(
        model=PrivacyModel.JOINT,
        limit=None,
        composition=1.0,
        ledger=Ledger(capri.Budget(1.0, 1e-5)),
        private=True,
        digests={"store": {"guarded": True, "missed": late}},
        accounted=False,
    )
    (sight,) = (each for each in found.assumptions if "out of an attacker's sight" in each)
    assert said in sight
    assert "not from any one person's data" in sight


def test_presence_is_told_for_anonymous_and_for_returning_users() -> None:
    anonymous, returning = (
        small_policy(simulation_seed=None, contributions_per_user=k).certificate().presence
        for k in (None, 3)
    )
    assert "users are anonymous" in anonymous
    assert "comes back" in returning
    assert "up to 3 visits" in returning


def test_spent_is_each_users_own_and_grows_with_nobody() -> None:
    """The figure and its sentence are the same after one release and after four."""
    policy = small_policy(simulation_seed=None, calibration="analytic")
    assert "nobody has spent anything" in policy.certificate().spent_means
    play_epoch(policy)
    first = policy.certificate()
    while policy.remaining:
        play_epoch(policy)
    last = policy.certificate()
    assert len(last.releases) == 4
    assert last.spent["epsilon"] == pytest.approx(first.spent["epsilon"], rel=1e-6)
    assert last.spent_means == first.spent_means
    assert "budget of their own: epsilon 1 at delta 1e-05" in last.spent_means
    assert "not a common store" in last.spent_means
    for told in (first, last):
        assert "1 of 1" not in told.to_text()


def test_audit_is_quoted_or_said_to_be_absent() -> None:
    policy = small_policy(simulation_seed=None)
    assert policy.certificate().audit is None
    assert "no audit was attached" in policy.certificate().to_html()
    result = SimpleNamespace(to_dict=lambda: AUDIT)
    for audit in (AUDIT, result):
        told = policy.certificate(audit=audit)
        assert told.audit is not None
        assert told.audit["proven_epsilon"] == 0.91
        assert "proved epsilon 0.91 at 99.9 % confidence" in told.to_text()


def test_audit_that_the_package_makes_fits() -> None:
    from capri.audit.device import audit_device
    from capri.audit.scenarios import audit_policy

    budget = capri.Budget(4.0, 1e-5)
    policy = small_policy(simulation_seed=None, budget=budget, calibration="analytic")
    found = audit_policy(policy, trials=200, attacks=("reward",))
    told = small_policy(simulation_seed=None, budget=budget).certificate(audit=found)
    assert told.audit is not None
    assert told.audit["claimed_epsilon"] == 4.0
    devices = aggregator(budget=capri.Budget(4.0))
    proof = audit_device(devices.bundle(), capri.Budget(4.0), CONTEXTS, trials=200)
    assert devices.certificate(audit=proof).audit is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "local"}, "attacked model local"),
        ({"delta": 1e-6}, "delta 1e-06"),
        ({"claimed": {"epsilon": 4.0}}, "at epsilon 4 "),
        ({"passed": False, "proven": {"epsilon": 2.0}}, "the audit failed"),
        ({"proven": {}}, "audit must be"),
        ({"proven": {"epsilon": "none"}}, "audit must be"),
    ],
)
def test_audit_of_another_promise_or_a_failed_one_is_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        small_policy(simulation_seed=None).certificate(audit=AUDIT | change)
    with pytest.raises(ConfigurationError, match="audit must be the result"):
        small_policy(simulation_seed=None).certificate(audit=3)


def test_terms_quote_the_guarantee_alone() -> None:
    """Simulations quote them in records: no digests, no account, no figure of a run."""
    terms = small_policy().terms()
    assert terms is not None
    assert set(terms) == {
        "model", "statement", "privacy_unit", "neighbouring_relation", "epsilon", "delta",
        "protects", "assumptions", "mechanism", "calibration", "noise_multiplier", "composition",
        "versions",
    }  # fmt: skip


def test_digests_follow_the_configuration_and_nothing_private() -> None:
    """Two runs of one configuration with different users have one configuration digest."""
    digests = []
    for seed in (1, 2):
        policy = small_policy(simulation_seed=None)
        play_epoch(policy, seed)
        digests.append(policy.certificate().digests)
    assert digests[0]["configuration"] == digests[1]["configuration"]
    assert len(digests[0]["plans"]) == 1
    two = [aggregator(public_seed=5).certificate().digests for _ in range(2)]
    assert two[0] == two[1]
    ridge = fitted().certificate().digests
    assert ridge["configuration"] != digests[0]["configuration"]
    assert len(ridge["plans"]) == len(set(ridge["plans"])) >= 1


def test_every_release_names_its_mechanism_and_norm() -> None:
    """Of a policy that takes either noise, of a pure one, of devices and of a fit."""
    for noise, norm in (("gaussian", "l2"), ("laplace", "l1")):
        policy = small_policy(simulation_seed=None, preset="practical", noise=noise)
        play_epoch(policy)
        told = policy.certificate()
        assert {(row["mechanism"], row["norm"]) for row in told.releases} == {(noise, norm)}
        assert f"| {noise} | {norm} |" in told.to_text()
        assert f'<td data-name="mechanism">{noise}</td>' in told.to_html()
        assert noise in repr(policy.ledger)
        assert f"<td>{noise}</td><td>{norm}</td>" in policy.ledger._repr_html_()
        (event,) = policy.ledger.events
        assert (event.to_dict()["mechanism"], event.to_dict()["norm"]) == (noise, norm)
    (row, *_) = fitted().certificate().releases
    assert (row["mechanism"], row["norm"]) == ("gaussian", "l2")
    server = aggregator(budget=capri.Budget(4.0))
    for user in range(10):
        client = capri.LocalClient(server.bundle(), capri.Budget(4.0), simulation=(5, user))
        client.act(CONTEXTS[0])
        server.receive(client.report(0.5))
    (row,) = server.certificate().releases
    assert (row["mechanism"], row["norm"]) == ("sphere", "l2")


def test_limits_that_a_crash_forgets_are_an_assumption(tmp_path: Path) -> None:
    """In memory they are kept until the next save; a store forgets none."""
    limits = {"contributions_per_user": 2, "budget": capri.Budget(1.0, 1e-5)}
    with pytest.warns(capri.PrivacyLeakWarning, match="a crash forgets"):
        told = policy(None, **limits).certificate()
    assert any("after a crash" in assumed for assumed in told.assumptions)
    assert told.kept_by[[("after a crash" in each) for each in told.assumptions].index(True)]
    with (
        policy(f"sqlite:///{tmp_path}/p.db", **limits) as stored,
        warnings.catch_warnings(action="error"),
    ):
        told = [stored.certificate(), policy(None).certificate()]
    for each in told:
        assert not any("after a crash" in assumed for assumed in each.assumptions)
