"""The scenarios of seed 003: a step keeps its batch when packing forces one pack a device, or it is
said.
"""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.pack import packed_batch

positive = st.integers(1, 64)


def test_effective_batch_size_is_honoured_after_packing_forces_one_a_device():
    batch = packed_batch(ranks=4, per_device=8, accumulation=2, effective_batch_size=128)
    assert (batch.accumulation, batch.realised, batch.preserved) == (32, 128, True)


def test_the_implied_batch_is_preserved_when_effective_batch_size_is_unset():
    batch = packed_batch(ranks=4, per_device=8, accumulation=2)
    assert (batch.intended, batch.accumulation, batch.realised, batch.preserved) == (
        64,
        16,
        64,
        True,
    )
    assert "(accumulation was 2)" in batch.report()


def test_a_batch_that_cannot_be_kept_is_reported_or_refused(caplog):
    with caplog.at_level(logging.WARNING, "headrace"):
        batch = packed_batch(ranks=3, effective_batch_size=16)
    assert (batch.realised, batch.preserved) == (18, False)
    assert "18 packs a step instead of 16" in caplog.text
    with pytest.raises(ConfigError, match=r"Use 18, or 15\."):
        packed_batch(ranks=3, effective_batch_size=16, strict=True)


@given(positive, positive, positive, st.none() | st.integers(1, 500), st.integers(1, 4))
def test_it_is_never_silently_another(ranks, per_device, accumulation, effective, packs):
    batch = packed_batch(
        ranks=ranks,
        per_device=per_device,
        accumulation=accumulation,
        effective_batch_size=effective,
        packs_per_device=packs,
    )
    assert batch.intended == (effective or ranks * per_device * accumulation)
    assert batch.realised == batch.per_device * batch.accumulation * ranks
    assert 0 <= batch.realised - batch.intended < packs * ranks
    assert batch.preserved == (batch.intended % (packs * ranks) == 0)
    assert ("instead of" in batch.report()) == (not batch.preserved)


@pytest.mark.parametrize(
    "field", ["ranks", "per_device", "accumulation", "effective_batch_size", "packs_per_device"]
)
def test_numbers_are_positive(field):
    with pytest.raises(ConfigError) as caught:
        packed_batch(**{"ranks": 1, field: 0})
    assert caught.value.field == field
