"""Named columns: what contexts and actions are called, and the rows of numbers they become.

>>> schema = Schema([Numeric("age", 18, 98), Categorical("plan", ["free", "pro"])])
>>> schema.row({"age": 58, "plan": "pro"})
array([0.5, 0. , 1. , 0. ])
>>> schema.describe(schema.row({"age": 58, "plan": "gold"}))
{'age': 58.0, 'plan': UNKNOWN}
"""

from capri.schema.columns import UNKNOWN, Boolean, Categorical, Column, Numeric
from capri.schema.schema import Schema

__all__ = ["UNKNOWN", "Boolean", "Categorical", "Column", "Numeric", "Schema"]
