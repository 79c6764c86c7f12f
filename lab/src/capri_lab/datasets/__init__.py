"""Data sets as bandits, logged bandit data, and what another policy would have earned on it.

>>> bandit = environment_by_name("wine", public_share=0.3)
>>> bandit.action_names
('0', '1', '2')
"""

from capri_lab.datasets.bandit import DataBandit, OnePass
from capri_lab.datasets.catalogue import (
    DATASET_NAMES,
    comes_raw,
    environment_by_name,
    suggested_kernel,
    table_environment,
)
from capri_lab.datasets.loader import load
from capri_lab.datasets.logs import BanditLog, Replay, load_log, record, replay
from capri_lab.datasets.off_policy import (
    Estimate,
    RewardModel,
    RidgeModel,
    doubly_robust,
    ips,
    snips,
)
from capri_lab.datasets.rewards import Closeness, LabelRule, Match, Sale

__all__ = [
    "DATASET_NAMES",
    "BanditLog",
    "Closeness",
    "DataBandit",
    "Estimate",
    "LabelRule",
    "Match",
    "OnePass",
    "Replay",
    "RewardModel",
    "RidgeModel",
    "Sale",
    "comes_raw",
    "doubly_robust",
    "environment_by_name",
    "ips",
    "load",
    "load_log",
    "record",
    "replay",
    "snips",
    "suggested_kernel",
    "table_environment",
]
