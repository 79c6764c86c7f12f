"""A learner for many unrelated arms: all matrices are blocks, one an arm."""

from capri.learners.arms.learner import ArmsLearner, suits_arms

__all__ = ["ArmsLearner", "suits_arms"]
