"""Losses are compiled for many shapes, and forgotten at the end of each file."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def programs_of_a_file() -> Iterator[None]:
    """Kept, they are some gigabytes at the end of all files."""
    yield
    jax.clear_caches()
