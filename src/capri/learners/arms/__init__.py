"""A learner for many unrelated arms: all matrices are blocks, one an arm."""

from capri.learners.arms.learner import ArmKnowledge, ArmsLearner, suits_arms

__all__ = ["ArmKnowledge", "ArmsLearner", "suits_arms"]
