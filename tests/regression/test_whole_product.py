"""Products in whole numbers: the same bits in any company, close to the product they stand for."""

import numpy as np

from capri import PrivateKernelRidge
from capri.regression.options import checked
from capri.regression.sources import one_block
from capri.regression.stage import StagePlan, WholeProduct
from capri.streams import Streams


def a_plan() -> StagePlan:
    options = checked(PrivateKernelRidge(X_bounds=(0, 1), y_bounds=(-1, 1), rank=200))
    nobody = one_block(np.zeros((1, 6)), np.zeros((1, 1)))
    return options.engine(Streams(1), nobody, 20_000).plan(20_000)


def test_contributions_do_not_depend_on_the_batch_to_the_bit() -> None:
    plan = a_plan()
    assert plan._whole is not None  # what is tested is in use
    generator = np.random.default_rng(3)
    X, y = generator.random((700, 6)), generator.uniform(-1, 1, (700, 1))
    together = plan.contributions(X, y)
    for size in (1, 3, 64, 511):
        for start in (0, 1, 700 - size):
            part = slice(start, start + size)
            alone = plan.contributions(X[part], y[part])
            for whole, piece in zip(together, alone, strict=True):
                np.testing.assert_array_equal(whole[part], piece)


def test_features_are_those_of_the_plain_product_up_to_units_of_the_grid() -> None:
    plan = a_plan()
    X = np.random.default_rng(4).random((200, 6))
    features, _ = plan.contributions(X, np.zeros((200, 1)))
    psi = plan.features.whitened_block(X)
    norms = np.linalg.norm(psi, axis=1, keepdims=True)
    wanted = psi / np.maximum(norms, plan.clip_norm)
    assert np.abs(features - wanted).max() * plan.layout.level < 20


def test_every_partial_sum_is_a_whole_number_below_two_to_the_53() -> None:
    generator = np.random.default_rng(5)
    matrix = generator.standard_normal((300, 7)) * 10.0 ** np.arange(-3, 4)
    product = WholeProduct.of(matrix, 2.5, tolerance=np.inf)
    assert product is not None
    most = np.rint(2.5 * product.fine)
    assert (most * np.abs(product.numbers).sum(axis=0)).max() <= 2.0**53
    rows = generator.uniform(-2.5, 2.5, (50, 300))
    exact = np.array(
        [[sum(int(r) * int(m) for r, m in zip(row, column, strict=True))
          for column in product.numbers.T]
         for row in np.rint(rows[:5] * product.fine)], dtype=object)  # fmt: skip
    np.testing.assert_array_equal(product(rows)[:5], exact.astype(np.float64) * product.units)
    centred = WholeProduct.of(matrix, 0.5, centre=4.5, tolerance=np.inf)
    assert centred is not None
    near = rows / 5 + 4.5
    assert np.abs(centred(near) - near @ matrix).max() < 1e-5 * np.abs(near @ matrix).max()
    assert np.abs(product(rows) - rows @ matrix).max() < 1e-5 * np.abs(rows @ matrix).max()


def test_a_matrix_that_cancels_too_much_is_refused() -> None:
    matrix = np.random.default_rng(6).standard_normal((300, 7)) * 1e8
    assert WholeProduct.of(matrix, 1.0, tolerance=1e-6) is None
