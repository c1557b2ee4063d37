"""Losses are compiled for many shapes and run for a moment: compiled in a hurry, forgotten at the end of each file."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def programs_in_a_hurry() -> Iterator[None]:
    """Optimized, they take a third longer; kept, they are some gigabytes at the end of all files."""
    usual = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", usual)
    jax.clear_caches()
