"""Public figures of a policy: what was published once stays as it was."""

from pathlib import Path

import pytest

import capri
from capri.service.figures import Figures
from stored_policies import policy


def test_an_epoch_is_dated_from_its_first_look_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is released while somebody looks: between the dates that are read and the records."""
    run = policy(f"sqlite:///{tmp_path}/store.db", first_epoch=8)
    for visit in range(8):
        run.update(run.act([visit / 8]), 0.5)
    read = capri.Capri.dates.fget
    assert read is not None

    def and_then_released(self: capri.Capri) -> dict[int, float]:
        found = read(self)
        if not self.epochs:
            self.close_epoch()
        return found

    monkeypatch.setattr(capri.Capri, "dates", property(and_then_released))
    figures = Figures(run, "doses")
    early, late = figures.epochs(), figures.epochs()
    assert [record["epoch"] for record in late] == [1]
    assert late[0]["date"] is not None
    assert early in ([], late)
    run.close()
