"""What the releases of a policy said, for another one."""

from capri.epoch.course import Course
from capri.errors import ConfigurationError
from capri.files import digest_of
from capri.learners.catalogue import Catalogue
from capri.learners.start.prior import Observed, Prior, observed, sampled_pairs
from capri.privacy.budget import Budget
from capri.privacy.ledger import PriorEvent


def releases_prior(course: Course, budget: Budget | None, configuration: str) -> Prior:
    """All that a course has learnt so far; ``budget``: what its users were promised."""
    learner = course.learner
    if not isinstance(learner, Catalogue):
        raise ConfigurationError(
            "only a policy of preset 'practical' that keeps one belief for all actions tells "
            "another one what it learnt: the paper's algorithm keeps none, and one with "
            "blocks=True one for every action"
        )
    known = learner.knowledge()
    if known.belief.epochs == 0:
        raise ConfigurationError("this policy has not released anything yet: nothing to tell")
    pairs = sampled_pairs(known.problem, known.basis.rank)
    matrix, targets = observed(
        known.basis,
        pairs,
        known.belief.information,
        known.belief.vector,
        middle=known.problem.scale.centre,
    )
    digest = digest_of(
        {"configuration": configuration, "plans": course.plans}, {"targets": targets}
    )
    event = PriorEvent(
        kind="policy",
        digest=digest,
        count=course.learnt,
        epsilon=None if budget is None else budget.epsilon,
        delta=None if budget is None else budget.delta,
    )
    return Prior.of_observed(Observed(pairs=pairs, targets=targets, matrix=matrix, event=event))
