"""The certificate of a fit."""

from dataclasses import asdict
from importlib.metadata import version

from capri.errors import ConfigurationError
from capri.privacy.certificate import Certificate
from capri.privacy.ledger import Ledger


def certify_fit(
    ledger: Ledger | None, *, private: bool, from_data: tuple[str, ...] = ()
) -> Certificate:
    """State the guarantee of a fit, or refuse: no budget, no real noise or data in the settings."""
    if ledger is None:
        raise ConfigurationError(
            "no certificate: this fit spent no budget here. Epsilon is infinite, or the rows came "
            "as reports, which are certified where they are made"
        )
    if not private:
        raise ConfigurationError(
            "no certificate: a simulation draws seeded noise and protects nobody. "
            "Leave random_state at None"
        )
    if from_data:
        raise ConfigurationError(
            "no certificate: bounds were taken from the data, which is not private. "
            f"Give {' and '.join(from_data)}, known without looking at the data, and fit again"
        )
    events = ledger.events
    return Certificate(
        model="joint",
        statement=(
            "Whatever anyone can learn from the fitted estimator, its predictions and its widths "
            "would be almost as likely if any one row had been different. Whoever runs the fit "
            "sees the data and is trusted with it."
        ),
        privacy_unit="one row: all features and targets of it",
        neighbouring_relation="replace one: the same number of rows, one row changed",
        epsilon=ledger.budget.epsilon,
        delta=ledger.budget.delta,
        protects="features and targets of the row",
        assumptions=(
            "a person is in one row at most",
            "bounds, public rows, the kernel and all settings were chosen without looking at the "
            "data",
            "the place of a row, and the order of rows, does not depend on the values of rows (no "
            "sorting by value); otherwise use partial_fit, which makes a single stage",
            "rows are the same, in the same order, whenever they are read: chunks and files are "
            "checked for it, Dask collections are not",
            "the data are fitted once: every further fit on the same rows spends the budget again",
            "the machine that fits, its memory and its timing are out of an attacker's sight",
        ),
        mechanism=(
            "second-moment matrix of rows, each clipped in norm and rounded to an integer grid, "
            "plus discrete Gaussian noise from OpenDP's cryptographic generator, seeded by the "
            "operating system"
        ),
        calibration=(
            "exact Gaussian mechanism (Balle and Wang 2018) at the replace-one sensitivity, with "
            "the step from continuous to integer noise paid for; the paper's noise where larger"
        ),
        noise_multiplier=min(1 / event.mu for event in events),
        composition=(
            "parallel: every row is in one stage, by public lots, and later stages are "
            "post-processing of earlier ones, so every stage may spend the full budget"
        ),
        releases=tuple(
            {
                "stage": event.epoch,
                "rows": event.participants,
                "coordinates": event.rank,
                "sensitivity": event.sensitivity,
                "noise": event.noise_scale,
                "calibration": event.calibration,
                "epsilon": ledger.spent_in(event.epoch).epsilon,
            }
            for event in events
        ),
        spent=asdict(ledger.spent),
        versions={
            name: version(name)
            for name in ("capri-bandits", "opendp", "dp-accounting", "numpy", "scipy")
        },
    )
