"""What any policy promises: CAPRI with a curator or on devices, rivals, uniform play."""

from capri.local.fleet import Fleet
from capri.problem import Randomizer
from capri.rivals import Promise
from capri.rivals import promise_of as promise_of_rival


def promise_of(policy: object) -> Promise:
    """The promise that real users of this policy would be given."""
    if not isinstance(policy, Fleet):
        return promise_of_rival(policy)
    pure = policy.aggregator.randomizer is Randomizer.SPHERE
    return Promise(model="local", kind="pure" if pure else "approximate")
