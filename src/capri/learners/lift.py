"""What the law of now is worth beside others, and how sure the releases are of it.

A law ``p`` is worth, over the public contexts,

    V(p) = E_c sum_a p(a | c) f(c, a) = g(p)^T theta,    g(p) = E_c sum_a p(a | c) v(c, a),

so a difference of two laws is ``d^T theta`` with ``d = g(p) - g(q)``. Under the belief
``theta ~ N(m, P)`` it is normal with mean ``d^T m`` and variance ``d^T P d``; what is common to
both laws cancels. Post-processing of releases. A floor on an action (:class:`~capri.Limits`) keeps
the error of its law small.
"""

from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np

from capri.arrays import FloatArray
from capri.epoch.learner import Learner
from capri.errors import ConfigurationError
from capri.learners.arm_prior import ArmPosterior
from capri.learners.belief import TRUSTED
from capri.learners.explain import few_contexts
from capri.learners.learner import PracticalLearner
from capri.learners.model import Knowledge
from capri.streams import EXPLANATION

# Of a pool, so many contexts are looked at; of them, so many pairs at a time.
_CONTEXTS, _PAIRS = 256, 1 << 13
# Of a normal variable, 95 in 100 lie within so many deviations; what is unknown of ``f`` is
# expected to within TRUSTED times itself.
_WIDTH = 1.959964 * TRUSTED


@dataclass(frozen=True, kw_only=True)
class Lift:
    """What another law would earn a visit, and how much more the law of now does.

    ``low`` and ``high``: an interval for 95 %, as good as what the belief takes for granted.
    """

    against: str
    worth: float
    lift: float
    standard_error: float

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.lift - _WIDTH * self.standard_error

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.lift + _WIDTH * self.standard_error

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"low": self.low, "high": self.high}


def lifts(learner: Learner, control: str | None = None) -> tuple[Lift, ...]:
    """Against uniform play, the best fixed action and, where one is named, ``control``."""
    if not isinstance(learner, PracticalLearner):
        raise ConfigurationError("the paper's algorithm keeps no belief: only preset 'practical'")
    known, actions = learner.known, learner.problem.actions
    names = actions.names or tuple(str(number) for number in range(actions.count))
    if control is not None and control not in names:
        raise ConfigurationError(f"control must be the name of an action, got {control!r}")
    generator = np.random.default_rng(EXPLANATION)  # the same contexts in every call
    rows, weights = few_contexts(learner.problem.contexts, generator, _CONTEXTS, _CONTEXTS)
    law = weights[:, None] * learner.probabilities(rows)
    fixed = weights @ learner.estimate(rows)
    best = int(fixed.argmax())
    others = {"uniform play": np.full(law.shape, weights[:, None] / actions.count)}
    for place in dict.fromkeys([best, *([] if control is None else [names.index(control)])]):
        only = np.zeros(law.shape)
        only[:, place] = weights
        others[f"always {names[place]}"] = only
    centre = float(learner.problem.scale.told(np.zeros(1))[0])
    found = []
    for name, other in others.items():
        worth, _ = _functional(known, rows, other)
        lift, error = _functional(known, rows, law - other)
        found.append(Lift(against=name, worth=worth + centre, lift=lift, standard_error=error))
    return tuple(found)


def _functional(known: Knowledge, rows: FloatArray, weights: FloatArray) -> tuple[float, float]:
    """Mean and deviation of ``sum_{c, a} w(c, a) f(c, a)``."""
    actions, state = known.problem.actions, known.posterior
    direction = np.zeros(known.basis.rank)
    step = max(1, _PAIRS // actions.count)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        values = known.basis.coordinates(actions.pairs(rows[part]))
        direction += np.einsum("nar,na->r", values, weights[part])
    mean = float(direction @ state.mean.ravel())
    if isinstance(state, ArmPosterior):
        blocks = direction.reshape(state.mean.shape)
        own = np.einsum("ai,aij,aj->", blocks, state.own, blocks)
        shared = np.einsum("ai,aij->j", blocks, state.carried)
        return mean, sqrt(max(0.0, float(own + shared @ shared)))
    return mean, float(np.linalg.norm(direction @ state.factor))
