"""The picture shows the numbers it was given, and its labels do not collide."""

from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from capri import EpochRecord, SimulationResult
from capri.audit.proof import AttackResult, AuditResult
from capri.forecast.result import ExpectedEpoch, ExpectedRegret, Forecast
from capri.players import ContestRun
from capri.plots import (
    audit_figure,
    contest_figure,
    spread,
    to_bytes,
)
from capri.plots.style import draw_epochs


def contest(
    label: str,
    end: float,
    widths: tuple[float, ...] = (),
    predicted: tuple[float | None, ...] = (None, None),
) -> ContestRun:
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
            predicted_error=predicted[number - 1],
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
    return ContestRun(label=label, result=result, errors=errors, reference=not widths)


RUNS = [contest("one", 20.0, (8.0, 4.0)), contest("two", 21.0, (3.0, 2.0)), contest("three", 50.0)]


def figure_of(runs: list[ContestRun]):
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


PREDICTING = [
    contest("one", 20.0, (8.0, 4.0), (0.5, 0.25)),
    contest("two", 21.0, (3.0, 2.0), (0.3, 0.1)),
    contest("three", 50.0),
]


def test_predicted_errors_stand_beside_true_ones() -> None:
    """Not beside the width: that bounds every difference, the error is a root mean square."""
    _, right = figure_of(PREDICTING).axes
    predicted, true = right.lines[0], right.lines[1]
    np.testing.assert_array_equal(predicted.get_ydata(), [0.5, 0.25])
    np.testing.assert_allclose(true.get_ydata(), [0.8, 0.4])
    np.testing.assert_array_equal(true.get_xdata(), [50, 100])
    gap = right.lines[-1]
    assert list(gap.get_ydata()) == [0.5, 0.5]
    assert all("4 x width" not in text.get_text() for text in right.texts)


@pytest.mark.parametrize(("ends", "alone"), [([10, 30, 70], False), ([10, 30, 35], True)])
def test_an_epoch_cut_short_by_the_horizon_stands_alone(ends: list[int], alone: bool) -> None:
    """No line leads to it, so that none turns upward for want of rounds; its dot is there."""
    axes = Figure().subplots()
    draw_epochs(axes, ends, [3.0, 2.0, 2.5], "black")
    x, y = axes.lines[0].get_data()
    there = ~np.isnan(x)
    np.testing.assert_array_equal(x[there], ends)
    np.testing.assert_array_equal(y[there], [3.0, 2.0, 2.5])
    assert list(there) == ([True, True, False, True] if alone else [True] * 3)
    assert axes.lines[0].get_marker() == "o"


def test_a_long_headline_makes_the_picture_taller() -> None:
    """The panels keep their size, and their titles stay below the headline."""
    heights = []
    for lines in (2, 5):
        figure = contest_figure(
            RUNS, reward_range=2.0, headline="\n".join(["words"] * lines), footnote=""
        )
        figure.canvas.draw()
        headline = figure.texts[0].get_window_extent()
        titles = [text.get_window_extent() for axes in figure.axes for text in axes.texts]
        assert all(title.y1 < headline.y0 for title in titles)
        heights.append(figure.axes[0].get_window_extent().height)
    assert heights[0] == pytest.approx(heights[1])


def test_curves_that_coincide_stay_visible() -> None:
    below, above, reference = figure_of(RUNS).axes[0].lines
    assert below.get_linewidth() > above.get_linewidth() > reference.get_linewidth()
    assert reference.is_dashed()


@pytest.mark.parametrize("runs", [RUNS, PREDICTING])
def test_labels_stay_inside_and_apart(runs: list[ContestRun]) -> None:
    labels_stay_inside_and_apart(figure_of(runs))


def labels_stay_inside_and_apart(figure) -> None:
    figure.canvas.draw()
    for axes in figure.axes:
        labels = [text for text in axes.texts if text.arrow_patch is not None]
        boxes = [text.get_window_extent() for text in labels]
        assert len(boxes) >= 2
        assert all(box.x1 <= figure.bbox.x1 for box in boxes)
        boxes.sort(key=lambda box: box.y0)
        assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))


@pytest.mark.parametrize(
    ("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_file_kinds(kind: str, start: bytes) -> None:
    assert to_bytes(figure_of(RUNS), kind).startswith(start)


def a_forecast() -> Forecast:
    outlooks = tuple(
        ExpectedRegret(
            epsilon=epsilon,
            rounds=rounds,
            functions=4,
            regret_per_round=0.3 * ratio,
            regret_standard_error=0.01,
            ratio=ratio,
            ratio_standard_error=0.02,
        )
        for epsilon, ratios in ((0.1, (1.0, 0.95)), (1.0, (0.7, 0.3)), (inf, (0.2, 0.01)))
        for rounds, ratio in zip((100, 1000), ratios, strict=True)
    )
    epochs = tuple(
        ExpectedEpoch(
            epsilon=epsilon,
            epoch=epoch,
            length=100,
            rounds=100 * epoch,
            width=0.5 / epoch,
            predicted_error=0.1 / epoch,
            gap=0.28 / epoch,
            noise_share=0.8 / epoch,
            sampling_share=1 - 0.8 / epoch,
            active_share=0.5,
            noise_scale=3.0,
        )
        for epsilon in (1.0, inf)
        for epoch in (1, 2)
    )
    return Forecast(
        model="joint",
        preset="practical",
        delta=1e-5,
        functions=4,
        noise=0.1,
        seed=0,
        contexts="the pool of 3 contexts",
        uniform_regret_per_round=0.3,
        rows=outlooks,
        curves=outlooks,
        epochs=epochs,
    )


def test_forecast_shows_its_numbers() -> None:
    figure = a_forecast().plot()
    ratio, gap, share = figure.axes
    np.testing.assert_array_equal(ratio.lines[0].get_ydata(), [1.0, 0.95])
    np.testing.assert_array_equal(ratio.lines[0].get_xdata(), [100, 1000])
    # Epsilon 0.1 closes no epoch: two epsilons with a width and a gap each, and the mean gap.
    assert len(gap.lines) == 5
    np.testing.assert_array_equal(gap.lines[1].get_ydata(), [0.28, 0.14])
    np.testing.assert_array_equal(share.lines[0].get_ydata(), [0.8, 0.4])
    headline = " ".join(figure.texts[0].get_text().split())
    assert headline == (
        "Expected regret after 1,000 rounds, as a share of uniform play: 0.95 ± 0.02 at epsilon "
        "0.1 (hopeless), 0.3 ± 0.02 at epsilon 1 (learns), 0.01 ± 0.02 without privacy (good)."
    )
    labels_stay_inside_and_apart(figure)


def an_audit(proven: float) -> AuditResult:
    generator = np.random.default_rng(0)
    low, high = generator.normal(-0.5, 1.0, 5000), generator.normal(0.5, 1.0, 5000)
    attack = AttackResult(name="release", trials=5000, low=low, high=high, proven=proven)
    return AuditResult(
        model="local",
        epsilon=4.0,
        delta=1e-5,
        confidence=0.999,
        attacks=(attack,),
    )


def test_audit_shows_both_worlds_and_the_claim() -> None:
    figure = audit_figure(an_audit(0.9), footnote="A note")
    axes = figure.axes[0]
    low, high, threshold = axes.lines
    for curve, centre in ((low, -0.925 / 2), (high, 0.925 / 2)):
        x, y = curve.get_xdata(), curve.get_ydata()
        assert abs(x[np.argmax(y)] - centre) < 0.05
        assert max(y) == pytest.approx((2 * np.pi) ** -0.5, rel=1e-2)
    assert list(threshold.get_xdata()) == [0, 0]
    # Histograms are densities, and the threshold lies between two bins.
    bars = [axes.containers[0], axes.containers[1]]
    for container in bars:
        area = sum(bar.get_height() * bar.get_width() for bar in container)
        assert area == pytest.approx(1.0)
        assert min(abs(bar.get_x()) for bar in container) < 1e-9
    headline = figure.texts[0].get_text()
    assert headline.startswith("Passed. Local model, 99.9 % confidence")
    assert "mu 0.925" in headline
    assert "mu 0.900" in headline


def test_audit_of_a_pure_claim_shows_shares_of_its_epsilon() -> None:
    """The claim's own law: half of all runs tell everything, and densities add up to 1."""
    seen = 2.0 + np.random.default_rng(1).laplace(size=20_000)
    high = np.clip(seen / 2.0, -1, 1)
    attack = AttackResult(name="reward", trials=20_000, low=-high, high=high, proven=3.5)
    pure = AuditResult(model="joint", epsilon=4.0, delta=0.0, confidence=0.999, attacks=(attack,))
    figure = audit_figure(pure, footnote="")
    axes = figure.axes[0]
    assert "mu" not in figure.texts[0].get_text()
    assert "share of epsilon" in axes.get_xlabel()
    claims = [each.get_data() for each in axes.patches if isinstance(each, StepPatch)]
    for claim, bars in zip(claims, axes.containers, strict=True):
        width = claim.edges[1] - claim.edges[0]
        assert claim.values.sum() * width == pytest.approx(1.0)
        heights = np.array([bar.get_height() for bar in bars])
        np.testing.assert_allclose(claim.values * width, heights * width, atol=0.02)


def test_a_failed_audit_says_so() -> None:
    headline = audit_figure(an_audit(1.5), footnote="").texts[0].get_text()
    assert headline.startswith("FAILED: an attack proves more loss than is claimed")


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12), st.floats(0.1, 50))
def test_spread_keeps_the_distance_and_the_centre(values: list[float], gap: float) -> None:
    positions = np.sort(values)
    moved = spread(positions, gap)
    assert (np.diff(moved) >= gap * (1 - 1e-6) - 1e-9).all()
    assert moved.mean() == pytest.approx(positions.mean(), abs=1e-6)
    if (np.diff(positions) >= gap).all():
        np.testing.assert_allclose(moved, positions, atol=1e-9)
