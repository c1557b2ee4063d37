"""Losses over a packed batch: policies, preferences, distillation."""
