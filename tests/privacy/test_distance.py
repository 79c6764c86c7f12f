"""No two messages are further apart than 2: every pair at small size, a search at a larger one.

Distances are squared and in the norm of the noise: a block counts its share, so 4 is the limit for
numbers and ``4 L^4`` for integers. Nothing here is random but for fixed seeds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import sqrt

import numpy as np
import pytest

from capri.arrays import FloatArray
from capri.errors import ConfigurationError
from capri.privacy.products import ProductLayout, RoundedRows
from capri.privacy.projection import half_vector, integer_projection

LIMIT = 4 * (1 + 1e-12)


def at_limits(rank: int, **blocks: object) -> ProductLayout:
    """A layout whose moment and count are as loud as they may be."""
    plain = ProductLayout(rank=rank, **blocks)  # type: ignore[arg-type]
    loud = replace(plain, moment_share=plain.largest_moment_share)
    return replace(loud, count_share=loud.largest_count_share)


BLOCKS = [
    {"missing": missing, "second_moments": second, "tail_share": tail}
    for missing, second, tail in product([False, True], [False, True], [0.0, 0.1, 0.5])
]


# --- all messages of a small grid, in exact integers ---------------------------------------------


def every_row(rank: int, level: int) -> RoundedRows:
    """Each message that integers within their bounds can make: answered, missing and bad."""
    steps = range(-level, level + 1)
    ball = [psi for psi in product(steps, repeat=rank) if sum(x * x for x in psi) <= level**2]
    answered = [(*psi, t, e, 1, 0) for psi in ball for t in steps for e in range(level + 1)]
    rows = [*answered, *((*psi, 0, 0, 0, 1) for psi in ball), (0,) * (rank + 4)]
    table = np.array(rows, dtype=float)
    return RoundedRows(table[:, :rank], *table[:, rank:].T)


def largest_squared_distance(layout: ProductLayout, level: int) -> Fraction:
    """Over all pairs: the largest by floating point, ties and all, settled in exact fractions."""
    grid = replace(layout, level=level)
    units = np.unique(grid.products(every_row(layout.rank, level)), axis=0)
    blocks = layout.blocks.values()
    weighted = units * np.sqrt(np.concatenate([[float(b.share_squared)] * b.size for b in blocks]))
    squares = np.einsum("ij,ij->i", weighted, weighted)
    near = set()
    for start in range(0, len(units), 512):
        part = slice(start, start + 512)
        distances = squares[part, None] + squares - 2 * weighted[part] @ weighted.T
        first, second = np.nonzero(distances > 4 * level**4 * (1 - 1e-9))
        near |= set(map(tuple, np.abs(units[part][first] - units[second]).tolist()))
    assert near, "nothing comes near the limit"
    return max(
        sum((b.share_squared * sum(gap * gap for gap in gaps[b.part]) for b in blocks), Fraction(0))
        for gaps in near
    )


# The grid leaves room for rounding, so the smallest level has to exceed sqrt(rank)/2 + 1.
@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@pytest.mark.parametrize(("rank", "level"), [(1, 3), (1, 6), (2, 3)])
def test_every_pair_of_integer_messages_is_within_the_sensitivity(
    blocks: dict, rank: int, level: int
) -> None:
    """At most ``4 L^4``, exactly; and attained: same features, opposite values, tail 0 and 1."""
    squared = largest_squared_distance(at_limits(rank, **blocks), level)
    assert squared == 4 * level**4


# --- numbers of any rank, as the formula is printed ----------------------------------------------


@dataclass
class Shares:
    """The printed formula with its constants open, so that each can be got wrong."""

    main: float
    second: float
    missing: float
    moment: float
    tail: float
    count: float


def shares_of(layout: ProductLayout) -> Shares:
    main = sqrt(1 - layout.tail_share**2)
    return Shares(
        main=main,
        second=main / sqrt(2) if layout.second_moments else 0.0,
        missing=main if layout.missing else 0.0,
        moment=layout.moment_share,
        tail=layout.tail_share,
        count=layout.count_share,
    )


def message(shares: Shares, psi: FloatArray, t: float, e: float, form: str) -> FloatArray:
    """[m t psi, 0, m psi psi^T / sqrt 2, s(2t^2-1), q(2e-1), 0], or the missing form."""
    second = shares.second * np.outer(psi, psi).ravel()
    nothing = np.zeros(len(psi))
    if form == "missing":
        return np.concatenate([nothing, shares.missing * psi, second, [0, 0, shares.count]])
    if form == "bad":
        return np.concatenate([nothing, nothing, 0 * second, [0, 0, 0]])
    ends = [shares.moment * (2 * t * t - 1), shares.tail * (2 * e - 1), 0]
    return np.concatenate([shares.main * t * psi, nothing, second, ends])


Side = tuple[FloatArray, float, float]


def squared(shares: Shares, forms: tuple[str, str], left: Side, right: Side) -> float:
    gap = message(shares, *left, forms[0]) - message(shares, *right, forms[1])
    return float(gap @ gap)


def into_bounds(numbers: FloatArray, rank: int) -> Side:
    psi, t, e = numbers[:rank], numbers[rank], numbers[rank + 1]
    return (
        psi / max(1.0, float(np.linalg.norm(psi))),
        float(np.clip(t, -1, 1)),
        float(np.clip(e, 0, 1)),
    )


def search(shares: Shares, forms: tuple[str, str], rank: int, restarts: int = 6) -> float:
    """Random starts, then steps along one number at a time, halved when none helps."""
    generator = np.random.default_rng(1)
    best = 0.0
    for _ in range(restarts):
        numbers = generator.uniform(-1.5, 1.5, size=(2, rank + 2))

        def value(numbers: FloatArray) -> float:
            left, right = (into_bounds(side, rank) for side in numbers)
            return squared(shares, forms, left, right)

        step, current = 0.5, value(numbers)
        while step > 1e-3:
            before = current
            for place in np.ndindex(numbers.shape):
                for change in (step, -step):
                    trial = numbers.copy()
                    trial[place] += change
                    if (found := value(trial)) > current:
                        numbers, current = trial, found
            step = step if current > before + 1e-9 else step / 2
        best = max(best, current)
    return best


FORMS = [("answered", "answered"), ("answered", "missing"), ("missing", "missing")]


@pytest.mark.parametrize("forms", FORMS, ids="-".join)
@pytest.mark.parametrize("rank", [2, 5])
def test_search_at_higher_rank_reaches_the_limit_and_never_passes_it(
    forms: tuple[str, str], rank: int
) -> None:
    """All blocks, at their limits: each pair of forms comes to 4, so no share could be louder."""
    layout = at_limits(rank, missing=True, second_moments=True, tail_share=0.1)
    found = search(shares_of(layout), forms, rank)
    assert found <= LIMIT
    assert found > 3.9


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
def test_search_with_fewer_blocks(blocks: dict) -> None:
    layout = at_limits(3, **blocks)
    found = max(search(shares_of(layout), forms, 3, restarts=3) for forms in FORMS)
    assert 3.9 < found <= LIMIT


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
def test_bad_message_is_close_to_all_others(blocks: dict) -> None:
    """Zero is inside: its squared distance to any message stays below 4, by the largest norm."""
    shares = shares_of(at_limits(2, **blocks))
    psi = np.array([1.0, 0.0])
    for form, t, e in product(["answered", "missing"], [0.0, 1.0], [0.0, 1.0]):
        assert squared(shares, (form, "bad"), (psi, t, e), (psi, t, e)) <= LIMIT


def test_integer_messages_are_the_printed_ones() -> None:
    """Integers times share over ``L^2`` have the distances of the formula they stand for."""
    generator = np.random.default_rng(2)
    layout = at_limits(4, missing=True, second_moments=True, tail_share=0.3)
    grid = replace(layout, level=1000)
    psi = generator.normal(size=(12, 4)) / 3
    values = np.where(np.arange(12) % 4 == 0, np.nan, generator.uniform(-1.5, 1.5, 12))
    rows = grid.rounded(psi, values)
    weights = np.concatenate(
        [np.full(b.size, sqrt(b.share_squared)) for b in layout.blocks.values()]
    )
    units = grid.products(rows) * weights / grid.level**2
    forms = np.where(rows.missing == 1, "missing", "answered")
    sides = [
        (rows.features[i] / 1000, rows.values[i] / 1000, rows.excess[i] / 1000) for i in range(12)
    ]
    for i, j in product(range(12), repeat=2):
        printed = squared(shares_of(layout), (forms[i], forms[j]), sides[i], sides[j])
        assert np.sum((units[i] - units[j]) ** 2) == pytest.approx(printed, abs=1e-12)


# --- what goes wrong when a constant is ----------------------------------------------------------

UP, SIDE = np.array([1.0, 0.0]), np.array([0.0, 1.0])
ALL = at_limits(2, missing=True, second_moments=True, tail_share=0.1)
TILTED = np.array([-8 / 9, sqrt(17) / 9])
GOLDEN = sqrt(5) - 2


def changed(layout: ProductLayout, change: Callable[[Shares], dict]) -> Shares:
    shares = shares_of(layout)
    return replace(shares, **change(shares))


WITHOUT_MOMENTS = at_limits(2)
MUTANTS = {
    # coefficient .75 of psi psi^T: both answer 1, cosine -8/9: 4.014
    "second moments at 0.75": (
        Shares(main=1, second=0.75, missing=1, moment=0, tail=0, count=0),
        ("answered", "answered"),
        (UP, 1.0, 0.0),
        (TILTED, 1.0, 0.0),
        4.0139,
    ),
    # the tail rides on a full main block: 4 + 4 q^2
    "tail without m": (
        changed(ALL, lambda old: {"main": 1.0}),
        ("answered", "answered"),
        (UP, 1.0, 1.0),
        (UP, -1.0, 0.0),
        4 + 4 * 0.1**2,
    ),
    # s^2 = .6 m^2 beside second moments: 2 m^2 + 2.4 m^2 + 4 q^2
    "moment too loud beside second moments": (
        changed(ALL, lambda old: {"moment": sqrt(0.6) * old.main}),
        ("answered", "answered"),
        (UP, 1.0, 1.0),
        (SIDE, 0.0, 0.0),
        4.4 * 0.99 + 4 * 0.1**2,
    ),
    # s = .84 without them: the worst second value is sqrt(5) - 2
    "moment too loud without them": (
        changed(WITHOUT_MOMENTS, lambda old: {"moment": 0.84, "count": 0.0}),
        ("answered", "answered"),
        (UP, 1.0, 0.0),
        (-UP, GOLDEN, 0.0),
        (1 + GOLDEN) ** 2 * (1 + 4 * 0.84**2 * (1 - GOLDEN) ** 2),
    ),
    # kappa^2 above 1 + 2 q^2 - s^2 by a tenth
    "count too loud": (
        changed(ALL, lambda old: {"count": sqrt(old.count**2 + 0.1)}),
        ("answered", "missing"),
        (UP, 1.0, 1.0),
        (SIDE, 0.0, 0.0),
        4.1,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_constant_is_caught(name: str) -> None:
    """The counterexample is as stated, and the search finds one as bad without being told."""
    shares, forms, left, right, stated = MUTANTS[name]
    assert squared(shares, forms, left, right) == pytest.approx(stated, abs=1e-4)
    assert stated > LIMIT
    assert search(shares, forms, 2) > LIMIT


def louder(layout: ProductLayout, **factors: Fraction) -> ProductLayout:
    """The same layout with wrong squared shares in its table of blocks, past all checks."""
    wrong = replace(layout)
    vars(wrong)["blocks"] = {
        name: replace(block, share_squared=block.share_squared * factors.get(name, Fraction(1)))
        for name, block in layout.blocks.items()
    }
    return wrong


PLAIN = ProductLayout(rank=2, second_moments=True)


@pytest.mark.parametrize(
    ("layout", "level", "factors"),
    [
        # .75^2 instead of 1/2: features (5, 0) and (-4, 3), values equal, are 4.005 apart
        (PLAIN, 5, {"diagonal": Fraction(9, 8), "products": Fraction(9, 8)}),
        (PLAIN, 5, {"products": Fraction(2)}),  # both triangles at the noise of one
        (ALL, 3, {"main": 1 / ALL.main_share_squared}),  # the tail without m
        (ALL, 3, {"moment": Fraction(101, 100)}),
        (ALL, 3, {"count": Fraction(101, 100)}),
        (ALL, 3, {"missing": Fraction(3, 2)}),
        (ALL, 3, {"tail": Fraction(101, 100)}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_share_in_the_table_of_blocks_is_caught(
    layout: ProductLayout, level: int, factors: dict
) -> None:
    """By the test that looks at every pair of integer messages, which passes without it."""
    assert largest_squared_distance(layout, level) == 4 * level**4
    assert largest_squared_distance(louder(layout, **factors), level) > 4 * level**4


def test_bound_on_the_whole_message_alone_is_caught() -> None:
    """Values 3 and -3 at a feature of norm .4: no longer than honest messages, 5.76 apart."""
    layout = ProductLayout(rank=2, second_moments=True)
    shares = shares_of(layout)
    honest = message(shares, UP, 1.0, 0.0, "answered")
    pair = [message(shares, 0.4 * UP, value, 0.0, "answered") for value in (3.0, -3.0)]
    for hostile in pair:  # a clip of the norm lets them pass as they are
        assert hostile @ hostile < honest @ honest
    assert np.sum((pair[0] - pair[1]) ** 2) == pytest.approx(5.76)
    grid = replace(layout, level=1000)
    units = grid.messages(np.tile(0.4 * UP, (2, 1)), np.array([3.0, -3.0]))
    gap = (units[0] - units[1]) / grid.level**2
    assert np.sum(gap[:2] ** 2) == pytest.approx(0.64, rel=1e-2)
    assert not gap[2:].any()


def test_moment_of_another_value_is_caught() -> None:
    """Main block of 1 and -1, moment of 1 and 0: ``4 + 4 s^2``. Both must be of the same ``t``."""
    shares = shares_of(at_limits(2, second_moments=True))
    left = message(shares, UP, 1.0, 0.0, "answered")
    right = message(shares, UP, -1.0, 0.0, "answered")
    right[-3] = -shares.moment
    assert np.sum((left - right) ** 2) == pytest.approx(4 + 4 * 0.5)


def test_rounding_after_multiplying_is_caught() -> None:
    """Rank 3, L = 6: ``rint(36/sqrt 3) = 21`` three times is longer than ``36``."""
    late = np.rint(36 * np.full(3, 1 / sqrt(3))).astype(int)
    assert 4 * int(late @ late) == 5292 > 4 * 6**4
    grid = ProductLayout(rank=3, level=6)
    ours = grid.messages(np.full((1, 3), 1 / sqrt(3)), np.ones(1))[0]
    assert 4 * int(ours @ ours) <= 4 * 6**4


# --- the limits are kept to the last bit ---------------------------------------------------------


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
def test_shares_are_accepted_up_to_the_limit_and_not_one_bit_further(blocks: dict) -> None:
    layout = at_limits(3, **blocks)
    main = 1 - Fraction(layout.tail_share) ** 2
    s, kappa = Fraction(layout.moment_share) ** 2, Fraction(layout.count_share) ** 2
    if layout.second_moments:
        assert s <= main / 2
    assert float(s / main) == pytest.approx(0.5 if layout.second_moments else 0.8325**2, abs=1e-4)
    if layout.second_moments and layout.missing:
        assert kappa <= 1 + 2 * Fraction(layout.tail_share) ** 2 - s
    with pytest.raises(ConfigurationError, match="moment_share must be at most"):
        replace(layout, moment_share=np.nextafter(layout.moment_share, 1), count_share=0.0)
    with pytest.raises(ConfigurationError, match="count_share must be at most"):
        replace(layout, count_share=np.nextafter(layout.count_share, 4))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rank": 0}, "rank must be a whole number of 1 or more, got 0"),
        ({"tail_share": 1.0}, "tail_share must be below 1"),
        ({"tail_share": 1e-7}, "tail_share must be 0"),
        ({"moment_share": float("nan")}, "moment_share must be zero or more"),
        ({"count_share": -0.1}, "count_share must be zero or more"),
        ({"missing": 1}, "missing must be True or False"),
    ],
)
def test_impossible_layouts_say_why(settings: dict, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ProductLayout(**({"rank": 2} | settings))


@pytest.mark.parametrize(
    ("layout", "coordinates"),
    [
        (ProductLayout(rank=50), 50),
        (ProductLayout(rank=50, moment_share=0.1, tail_share=0.1), 52),
        (ProductLayout(rank=50, missing=True, count_share=1.0), 101),
        (at_limits(1, missing=True, second_moments=True, tail_share=0.1), 1 + 1 + 1 + 3),
        (at_limits(150, missing=True, second_moments=True, tail_share=0.1), 300 + 11_325 + 3),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_number_of_coordinates(layout: ProductLayout, coordinates: int) -> None:
    assert layout.coordinates == coordinates
    places = [place for b in layout.blocks.values() for place in range(coordinates)[b.part]]
    assert places == list(range(coordinates))


# --- a projection ---------------------------------------------------------------------------------


def projected_layout(rank: int, size: int, bits: int = 10) -> ProductLayout:
    generator = np.random.default_rng(3)
    columns = rank * (rank + 1) // 2
    rows = np.linalg.qr(generator.normal(size=(columns, size)))[0].T
    projection = integer_projection(rows, rank, bits)
    return at_limits(rank, missing=True, second_moments=True, tail_share=0.1, projection=projection)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_projected_messages_are_within_the_sensitivity(size: int) -> None:
    """Every pair of integer messages, with few bits, so that rounding the rows matters."""
    for bits in (2, 10):
        layout = projected_layout(2, size, bits)
        assert largest_squared_distance(layout, 3) == 4 * 3**4


def test_projection_never_lengthens_and_wastes_little() -> None:
    """``N^2`` is above the largest eigenvalue, and 20 rows of 10 bits lose below one percent."""
    projection = projected_layout(20, 20).projection
    assert projection is not None
    lengths = np.linalg.svd(projection.directions, compute_uv=False)
    norm = sqrt(projection.norm_squared)
    assert lengths[0] <= norm <= projection.norm
    assert norm < 1.01 * 2**10
    matrix = np.cov(np.random.default_rng(4).normal(size=(20, 30)))
    half = half_vector(matrix)
    assert half @ half == pytest.approx(np.sum(matrix**2))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (np.eye(3)[:, :2], "have shape"),
        (2 * np.eye(3), "must be orthonormal"),
        (np.full((1, 3), np.nan), "must be orthonormal"),
    ],
)
def test_impossible_projections_say_why(rows: FloatArray, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        integer_projection(rows, rank=2)


def test_projection_belongs_to_its_layout() -> None:
    projection = integer_projection(np.eye(3), rank=2)
    with pytest.raises(ConfigurationError, match="needs second_moments=True"):
        ProductLayout(rank=2, projection=projection)
    with pytest.raises(ConfigurationError, match="of rank 2, the layout of rank 3"):
        ProductLayout(rank=3, second_moments=True, projection=projection)
