"""The paper's constants, against numbers worked out by hand.

The literals below were computed with forty-digit decimal arithmetic from the formulas of
Appendix A and C, not with this package:

Case 1: T = 10000, eps = 1, delta_DP = 1e-5, B = 1, tau = 1, sigma~_max = 1/2, |W| = 2500,
delta_ERR = 0.05, T_r = 400. Then ln T = 9.2103403719761827 and
d' = 0.05 / (2500 * 10000 * ln T) = 2.17147240951625914e-10.

Case 2: T = 500, eps = 0.3, delta_DP = 1e-3, B = 2.5, tau = 1/4, sigma~_max = 5/4, |W| = 12,
delta_ERR = 0.1, T_r = 23. Then ln T = 6.2146080984221917 and d' = 2.68185320823337465e-6.
"""

from dataclasses import dataclass

import pytest

import paper_formulas
from capri.learners.paper import paper_beta, paper_beta_privacy, paper_width
from capri.privacy.budget import Budget
from capri.privacy.calibration import paper_noise_scale


@dataclass(frozen=True)
class Case:
    T: int
    budget: Budget
    B: float
    tau: float
    sigma_max: float
    pairs: int
    failure: float
    T_r: int
    d: float
    sigma_0: float
    beta: float
    beta_1: float
    beta_1_main_text: float
    width_without_privacy: float
    width_joint: float
    width_local: float


CASES = [
    Case(
        T=10_000,
        budget=Budget(epsilon=1.0, delta=1e-5),
        B=1.0,
        tau=1.0,
        sigma_max=0.5,
        pairs=2500,
        failure=0.05,
        T_r=400,
        d=2.17147240951625914e-10,
        sigma_0=68.816457864651537,
        beta=2134.3424093724382,
        beta_1=6427.1977957203058,
        beta_1_main_text=553.06189220077344,
        width_without_privacy=1067.1712046862191,
        width_joint=2673.9706536162956,
        width_local=33203.160183287748,
    ),
    Case(
        T=500,
        budget=Budget(epsilon=0.3, delta=1e-3),
        B=2.5,
        tau=0.25,
        sigma_max=1.25,
        pairs=12,
        failure=0.1,
        T_r=23,
        d=2.68185320823337465e-6,
        sigma_0=775.00271168350223,
        beta=6150.9938616934194,
        beta_1=17270.302774039845,
        beta_1_main_text=1147.9524531220712,
        width_without_privacy=7688.7423271167742,
        width_joint=34673.590411554032,
        width_local=137103.52742226583,
    ),
]

every_case = pytest.mark.parametrize("case", CASES, ids=["case 1", "case 2"])


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-13)


def width(case: Case, *, budget: Budget | None, reports: int = 1) -> float:
    return paper_width(
        sigma_max=case.sigma_max,
        reward_bound=case.B,
        tau=case.tau,
        budget=budget,
        horizon=case.T,
        pairs=case.pairs,
        failure_probability=case.failure,
        reports=reports,
    )


@every_case
def test_noise_scale(case: Case) -> None:
    given = paper_noise_scale(
        case.budget, sigma_max=case.sigma_max, reward_bound=case.B, horizon=case.T
    )
    assert given == close(case.sigma_0)


@every_case
def test_beta(case: Case) -> None:
    given = paper_beta(reward_bound=case.B, tau=case.tau, horizon=case.T, failure=case.d)
    assert given == close(case.beta)


@every_case
def test_beta_privacy_is_the_lemmas_and_not_the_main_texts(case: Case) -> None:
    given = paper_beta_privacy(
        reward_bound=case.B, budget=case.budget, horizon=case.T, failure=case.d
    )
    assert given == close(case.beta_1)
    assert given > 10 * case.beta_1_main_text


@every_case
def test_width(case: Case) -> None:
    """``Delta_r`` in the joint model takes the failure probability ``d / (|W| T ln T)``."""
    assert width(case, budget=case.budget) == close(case.width_joint)


@every_case
def test_width_without_privacy_has_no_privacy_term(case: Case) -> None:
    assert width(case, budget=None) == close(case.width_without_privacy)


@every_case
def test_local_width_grows_by_the_root_of_the_reports(case: Case) -> None:
    """``beta_1,LDP = sqrt(T_r) beta_1``; the term of beta is untouched."""
    local = width(case, budget=case.budget, reports=case.T_r)
    assert local == close(case.width_local)
    joint = width(case, budget=case.budget)
    plain = width(case, budget=None)
    assert (local - plain) / (joint - plain) == close(case.T_r**0.5)


@every_case
def test_transcription_has_the_same_numbers(case: Case) -> None:
    """The page the other tests lean on is itself held against the decimal numbers."""
    epsilon, delta = case.budget.epsilon, case.budget.delta
    common = {"B": case.B, "T": case.T}
    private = {"epsilon": epsilon, "delta": delta}
    assert paper_formulas.sigma_0(sigma_max=case.sigma_max, **common, **private) == close(
        case.sigma_0
    )
    assert paper_formulas.beta(tau=case.tau, d=case.d, **common) == close(case.beta)
    assert paper_formulas.beta_1(d=case.d, **common, **private) == close(case.beta_1)
    assert paper_formulas.beta_1_main_text(
        pairs=case.pairs, d=case.d, **common, **private
    ) == close(case.beta_1_main_text)
    for reports, expected in ((1, case.width_joint), (case.T_r, case.width_local)):
        given = paper_formulas.delta_r(
            sigma_max=case.sigma_max,
            tau=case.tau,
            pairs=case.pairs,
            failure=case.failure,
            reports=reports,
            **common,
            **private,
        )
        assert given == close(expected)
