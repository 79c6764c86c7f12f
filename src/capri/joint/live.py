"""From a simulation to a private run: what was rehearsed on made-up users is known to everybody."""

import os
from copy import copy

from capri.epoch.course import Course
from capri.epoch.history import History
from capri.epoch.hooks import Hooks
from capri.epoch.ids import DecisionIds
from capri.errors import ConfigurationError
from capri.joint.keys import KeyBook
from capri.joint.policy import Capri
from capri.privacy.gate import Gate, noise_source
from capri.privacy.ledger import Ledger
from capri.privacy.randomness import Streams
from capri.privacy.users import Participation


def go_live(simulation: Capri) -> Capri:
    """A private run that starts where a simulation stands, as often as one likes.

    It takes over what the simulation learnt, its epochs and the plan of an epoch that nobody has
    come to yet. Noise, draws, ids, ledger and users are its own, and the simulation stays as it is.

    What a simulation learnt is taken for public here: it must have served made-up users, not
    recorded ones.
    """
    problem, budget = simulation.problem, simulation.problem.budget
    if simulation.private or budget is None:
        raise ConfigurationError(
            "only a simulation with a budget can go live: give the policy both a budget and a "
            "simulation_seed"
        )
    if simulation.pending:
        raise ConfigurationError(
            f"an epoch of this simulation is under way: fill it with {simulation.remaining} more "
            "decisions and call close_epoch() before it goes live"
        )
    run = copy(simulation)
    run._streams = Streams(None)
    run._course = _on(simulation._course, run._streams)
    run._participation = None if problem.limit is None else Participation(problem.limit)
    run._ledger = Ledger(
        budget,
        composition=problem.composition,
        participation=run._participation,
        prior=None if simulation._observed is None else simulation._observed.event,
    )
    run._gate = Gate(noise_source(run._streams.noise), run._ledger)
    run._ids = DecisionIds()
    run._keys = KeyBook(run._retention)
    run._history = History.new()
    run._process = os.getpid()
    if run._open is not None:
        run._enter(run._open.plan, run._decided)
    return run


def _on(course: Course, streams: Streams) -> Course:
    """The course from here on with other draws. Learners replace what they know, piece by piece,
    and never write into it: a shallow copy goes its own way."""
    branch = copy(course)
    branch.learner = copy(course.learner)
    branch.hooks = Hooks(len(course._records))
    branch._records = list(course._records)
    branch._draws = streams
    branch._timed = False
    return branch
