"""From planned rows to sharded batches: placement, block cache, prefetch, loader."""
