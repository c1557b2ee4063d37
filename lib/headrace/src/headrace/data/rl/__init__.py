"""Reinforcement learning: rollouts of a sampler, kept, filtered and packed into batches."""
