"""Losses are compiled for many shapes, and what is compiled stays: some gigabytes at the end of all files."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def no_compiled_program_left_behind() -> Iterator[None]:
    yield
    jax.clear_caches()
