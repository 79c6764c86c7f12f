"""The picture shows the numbers it was given, and its labels do not collide."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capri import EpochRecord, SimulationResult
from capri.plots import Contest, contest_figure, spread, to_bytes


def contest(label: str, end: float, widths: tuple[float, ...] = ()) -> Contest:
    records = tuple(
        EpochRecord(
            epoch=number,
            length=50,
            rank=3,
            tau=1.0,
            sigma_max=1.0,
            noise_scale=1.0,
            width=width,
            active_share=1.0,
            seconds=0.0,
        )
        for number, width in enumerate(widths, 1)
    )
    result = SimulationResult(
        rounds=100,
        regret=np.linspace(end / 100, end, 100),
        uniform_regret_per_round=0.5,
        seconds=1.0,
        peak_memory_bytes=1,
        epochs=records,
    )
    errors = tuple(width / 10 for width in widths)
    return Contest(label=label, result=result, errors=errors, reference=not widths)


RUNS = [contest("one", 20.0, (8.0, 4.0)), contest("two", 21.0, (3.0, 2.0)), contest("three", 50.0)]


def figure_of(runs: list[Contest]):
    return contest_figure(runs, reward_range=2.0, headline="What one sees", footnote="A note")


def test_curves_hold_the_results() -> None:
    left, right = figure_of(RUNS).axes
    for line, run in zip(left.lines, RUNS, strict=True):
        assert line.get_xdata()[-1] == 100
        assert line.get_ydata()[0] == 0.0
        assert line.get_ydata()[-1] == run.result.regret[-1]
    thresholds, errors = right.lines[0], right.lines[1]
    np.testing.assert_array_equal(thresholds.get_xdata(), [50, 100])
    np.testing.assert_array_equal(thresholds.get_ydata(), [32.0, 16.0])
    np.testing.assert_allclose(errors.get_ydata(), [0.8, 0.4])


def test_curves_that_coincide_stay_visible() -> None:
    below, above, reference = figure_of(RUNS).axes[0].lines
    assert below.get_linewidth() > above.get_linewidth() > reference.get_linewidth()
    assert reference.is_dashed()


def test_labels_stay_inside_and_apart() -> None:
    figure = figure_of(RUNS)
    figure.canvas.draw()
    for axes in figure.axes:
        labels = [text for text in axes.texts if text.arrow_patch is not None]
        boxes = [text.get_window_extent() for text in labels]
        assert len(boxes) >= 3
        assert all(box.x1 <= figure.bbox.x1 for box in boxes)
        boxes.sort(key=lambda box: box.y0)
        assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))


@pytest.mark.parametrize(
    ("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_file_kinds(kind: str, start: bytes) -> None:
    assert to_bytes(figure_of(RUNS), kind).startswith(start)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12), st.floats(0.1, 50))
def test_spread_keeps_the_distance_and_the_centre(values: list[float], gap: float) -> None:
    positions = np.sort(values)
    moved = spread(positions, gap)
    assert (np.diff(moved) >= gap * (1 - 1e-6) - 1e-9).all()
    assert moved.mean() == pytest.approx(positions.mean(), abs=1e-6)
    if (np.diff(positions) >= gap).all():
        np.testing.assert_allclose(moved, positions, atol=1e-9)
