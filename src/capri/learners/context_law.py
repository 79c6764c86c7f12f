"""The law of contexts, learnt from the second moments that every message carries.

Users' ``psi psi^T`` are summed beside ``t psi`` at no price (:mod:`capri.privacy.layout`). Under a
law of contexts that is ``w_c = pool_c + nu_c sum_k beta_k phi_k(c)`` on public rows, an epoch with
``n`` decisions and play ``p(x|c)`` expects of a projection ``q`` of them

    E[sum q] = n sum_c w_c Q_c,    Q_c = sum_x p(x|c) q(psi psi^T),

which is linear in ``beta``: all epochs add up to information ``G`` and a score ``z``, and

    log evidence(s) = z^T S (I + S G S)^-1 S z / 2 - log det(I + S G S) / 2,   S^2 = s^2 diag(decay)

says how large ``beta`` is, zero included. Three kinds of law are compared: the pool's own; the
pool's rows with other weights (``nu`` the pool); and rows beside the pool as well, which weigh
nothing unless the moments insist. The likeliest is taken, with the ``beta`` that is most likely
among those that give no row a negative weight. Post-processing of releases.

Users whom the basis does not know: when rows beside the pool should have coordinates, too.

A basis is made for the pool. Where the moments insist that users come from elsewhere, it is made
anew for those rows as well, and what was learnt passes to it as when actions are replaced
(:mod:`capri.learners.change_of_basis`). Until then nothing is spent on them.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

from capri.arrays import FloatArray
from capri.epoch.problem import Problem
from capri.features import Basis, Span
from capri.learners.context_support import ContextSupport
from capri.spaces import ContextPool, Contexts

# Sizes of beta that are compared with 0.
SCALES = (0.1, 0.3, 1.0, 2.0)
# Logarithm of what speaks for the pool before any release: against other weights, and against rows
# that it does not have.
_TRUST = (2.0, 10.0)
# What the kinds of law but the pool's own are called in files.
_KINDS = ("within", "beside")
# Rows whose weights are kept from being negative while beta is sought.
_BOUNDED = 256
# No row of the pool is given less than this share of its own weight.
_FLOOR = 0.02


@dataclass(frozen=True, eq=False)
class Moments:
    """What an epoch says of the law: the noisy moments, and what they are expected to be.

    ``base`` under the pool, ``designs`` the change with each ``beta`` of each kind of law;
    ``covariance`` of privacy and sampling noise.
    """

    seen: FloatArray
    base: FloatArray
    designs: tuple[FloatArray, ...]
    covariance: FloatArray

    @property
    def chi_square(self) -> float:
        """How far the release is from the pool: chi-square of ``degrees`` if the pool is right."""
        error = self.seen - self.base
        return float(error @ np.linalg.solve(self.covariance, error))

    @property
    def degrees(self) -> int:
        """Numbers that were compared."""
        return len(self.seen)


@dataclass(frozen=True, eq=False)
class ContextLaw:
    """All moments so far, and the law that they make likeliest.

    ``kind`` 0 is the pool, 1 and 2 are the others in the order above; ``beta`` is that kind's.
    """

    support: ContextSupport
    informations: tuple[FloatArray, ...]
    scores: tuple[FloatArray, ...]
    kind: int = 0
    scale: float = 0.0
    gain: float = 0.0
    beta: FloatArray | None = None
    left_out: float = 0.0  # of users, by the basis when it was last made (learners/context_law.py)

    @classmethod
    def trusting(cls, support: ContextSupport) -> "ContextLaw":
        """Before any release: the pool's own."""
        sizes = [len(decay) for decay in support.decays]
        return cls(
            support,
            tuple(np.zeros((size, size)) for size in sizes),
            tuple(np.zeros(size) for size in sizes),
        )

    @property
    def elsewhere(self) -> FloatArray:
        """Rows beside the pool."""
        return self.support.elsewhere

    def directions(
        self, contexts: FloatArray, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """How each ``beta`` moves weights, here and elsewhere: ``(rows, K)`` for both kinds."""
        own, count = len(contexts), len(self.elsewhere)
        inside = np.zeros((own + count, 0))
        if self.support.inside is not None:
            inside = np.zeros((own + count, len(self.support.inside.decay)))
            inside[:own] = weights[:, None] * self.support.inside(contexts)
        if self.support.outside is None:
            return inside, np.zeros((own + count, 0))
        values = self.support.outside(self.elsewhere) / count
        # Who comes from elsewhere does not come from the pool.
        outside = np.concatenate([-np.outer(weights, values.sum(axis=0)), values])
        return inside, np.concatenate([inside, outside], axis=1)

    def weights(self, contexts: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The learnt weights of rows that stand for the pool, and of those elsewhere."""
        nothing = np.zeros(len(self.elsewhere))
        if self.kind == 0 or self.beta is None:
            return weights, nothing
        moved = self.directions(contexts, weights)[self.kind - 1] @ self.beta
        own = np.maximum(weights + moved[: len(contexts)], _FLOOR * weights)
        other = np.maximum(moved[len(contexts) :], 0.0)
        total = own.sum() + other.sum()
        return own / total, other / total

    def contexts(self, public: Contexts) -> Contexts:
        """Public contexts that stand for the learnt law: the pool's, and those elsewhere."""
        if self.kind < 2:
            return public
        own, other = self.weights(self.support.rows, self.support.weights)
        # Which of the rows elsewhere it is, is known last: half of their weight goes to all.
        other = 0.5 * other + 0.5 * other.sum() / len(other)
        chances = np.concatenate([own, other])
        return ContextPool(np.concatenate([self.support.rows, self.elsewhere]), weights=chances)

    @property
    def mismatch(self) -> tuple[float, float]:
        """Total variation between the learnt law and the pool's; the share of users elsewhere."""
        weights = self.support.weights
        own, other = self.weights(self.support.rows, weights)
        away = float(other.sum())
        return 0.5 * (float(np.abs(own - weights).sum()) + away), away

    def observe(self, moments: Moments) -> "ContextLaw":
        """Take in the moments of an epoch."""
        error = moments.seen - moments.base
        informations, scores = [], []
        for design, information, score in zip(
            moments.designs, self.informations, self.scores, strict=True
        ):
            weighted = np.linalg.solve(moments.covariance, design.T)
            told = design @ weighted
            informations.append(information + (told + told.T) / 2)
            scores.append(score + weighted.T @ error)
        grown = replace(self, informations=tuple(informations), scores=tuple(scores))
        return grown._settled()

    def _settled(self) -> "ContextLaw":
        """With the likeliest kind, scale and ``beta``."""
        best = (0.0, 0, 0.0)
        for kind, decay in enumerate(self.support.decays, start=1):
            for scale in SCALES if len(decay) else ():
                gain = self._evidence(kind, scale * np.sqrt(decay)) - _TRUST[kind - 1]
                best = max(best, (gain, kind, scale))
        gain, kind, scale = best
        if kind == 0:
            return replace(self, kind=0, scale=0.0, gain=0.0, beta=None)
        decay = self.support.decays[kind - 1]
        precision = self.informations[kind - 1] + np.diag(1 / (scale**2 * decay))
        free = np.asarray(np.linalg.solve(precision, self.scores[kind - 1]), dtype=np.float64)
        # Of many rows some are asked to keep a weight; the others are cut where they would not.
        some = slice(None, None, max(1, -(-len(self.support.rows) // _BOUNDED)))
        weights = self.support.weights[some]
        slopes = self.directions(self.support.rows[some], weights)[kind - 1]
        least = np.concatenate([(_FLOOR - 1) * weights, np.zeros(len(self.elsewhere))])
        beta = allowed(free, precision, slopes, least)
        return replace(self, kind=kind, scale=scale, gain=gain, beta=beta)

    def _evidence(self, kind: int, root: FloatArray) -> float:
        inner = np.eye(len(root)) + root[:, None] * self.informations[kind - 1] * root
        values, vectors = np.linalg.eigh(inner)
        values = np.maximum(values, 1.0)  # but for rounding, which counts where there is no noise
        whitened = vectors.T @ (root * self.scores[kind - 1]) / np.sqrt(values)
        return float(0.5 * whitened @ whitened - 0.5 * np.log(values).sum())


def allowed(
    free: FloatArray, precision: FloatArray, slopes: FloatArray, least: FloatArray
) -> FloatArray:
    """The ``beta`` nearest to ``free``, by its precision, with ``slopes beta >= least``.

    Lawson and Hanson's least distance programme. With ``precision = L L^T`` and ``x = L^T (beta -
    free)`` it asks for the shortest ``x`` with ``G x >= h``; that follows from the non-negative
    ``u`` that makes ``[G^T; h^T] u`` come nearest to ``(0, ..., 0, 1)``.
    """
    short = least - slopes @ free
    if (short <= 0).all():
        return free
    sizes = np.linalg.norm(slopes, axis=1)
    used = sizes > 0
    values, vectors = np.linalg.eigh(precision)
    lower = vectors * np.sqrt(np.maximum(values, 1e-12 * values[-1]))
    matrix = np.linalg.solve(lower, slopes[used].T).T
    # Every row on a scale of its own: a row of small weight asks no less than a heavy one.
    scale = np.linalg.norm(matrix, axis=1)
    matrix, bound = matrix / scale[:, None], short[used] / scale
    unit = max(float(bound.max()), 1e-300)  # the answer is of this size: all is measured by it
    bound = bound / unit
    system = np.concatenate([matrix.T, bound[None, :]])
    target = np.zeros(len(system))
    target[-1] = 1.0
    try:
        found, _ = nnls(system, target, maxiter=20 * system.shape[1])
    except RuntimeError:  # not within its steps: weights are cut at their bounds later
        return free
    rest = system @ found - target
    if not rest[-1] < -1e-12:
        return np.zeros_like(free)  # beta = 0 is always allowed
    return np.asarray(free + np.linalg.solve(lower.T, -unit * rest[:-1] / rest[-1]))


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
    _, other = law.weights(law.support.rows, law.support.weights)
    if not isinstance(basis, Basis):
        return _WORTH * float(other.sum())
    pairs = problem.actions.pairs(law.elsewhere)
    left = basis.residual(pairs, basis.coordinates(pairs)).mean(axis=1)
    return float(other @ left / basis.kernel.diagonal(pairs.reshape(-1, pairs.shape[-1])).mean())


def too_many(law: ContextLaw) -> float:
    """Users left out beyond which a new basis is worth it."""
    return max(_TOO_MANY, _MORE * law.left_out)
