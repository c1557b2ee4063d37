"""Datasets and the one batch contract that all of them yield."""
