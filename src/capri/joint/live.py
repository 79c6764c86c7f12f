"""From a simulation to a private run: what was rehearsed on made-up users is known to everybody."""

from capri.joint.policy import Capri


def go_live(simulation: Capri) -> Capri:
    """See :meth:`capri.Capri.go_live`."""
    return simulation.go_live()
