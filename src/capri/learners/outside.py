"""Users whom the basis does not know: when rows beside the pool should have coordinates, too.

A basis is made for the pool. Where the moments insist that users come from elsewhere, it is made
anew for those rows as well, and what was learnt passes to it as when actions are replaced
(:mod:`capri.learners.passage`). Until then nothing is spent on them.
"""

from capri.epoch.problem import Problem
from capri.features import Basis, Span
from capri.learners.law import ContextLaw

# Users left out beyond which the basis is made anew; and how many times what it left out then.
_TOO_MANY, _MORE = 0.02, 2.0
# A basis of products has some coordinates everywhere: users elsewhere must be more.
_WORTH = 0.2


def left_out(law: ContextLaw, basis: Span, problem: Problem) -> float:
    """The share of users elsewhere, times what the basis leaves out of ``k(w, w)`` there.

    Of a basis of products nobody can tell what it leaves out: a fifth of those users, say.
    """
    if law.kind < 2:
        return 0.0
    _, other = law.weights(law.reach.rows, law.reach.weights)
    if not isinstance(basis, Basis):
        return _WORTH * float(other.sum())
    pairs = problem.actions.pairs(law.elsewhere)
    left = basis.residual(pairs, basis.coordinates(pairs)).mean(axis=1)
    return float(other @ left / basis.kernel.diagonal(pairs.reshape(-1, pairs.shape[-1])).mean())


def too_many(law: ContextLaw) -> float:
    """Users left out beyond which a new basis is worth it."""
    return max(_TOO_MANY, _MORE * law.left_out)
