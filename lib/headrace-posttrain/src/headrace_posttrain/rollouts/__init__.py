"""Reinforcement learning: rollouts, stored, filtered and packed into batches. Losses:
:mod:`headrace.batch`.
"""
