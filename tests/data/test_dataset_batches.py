"""A dataset cut into batches; a shuffle that waits for them gets its strands from their size."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.data import TokenSeqDataset
from headrace.data.dataset import BatchOrder
from headrace.feed import DataLoader
from headrace.testing import tiny_cache


@pytest.fixture(scope="module")
def dataset() -> TokenSeqDataset:
    return TokenSeqDataset(tiny_cache(documents=400), seq_len=8)


def double(batch):
    return batch


@pytest.mark.parametrize("batch", [8, {0: 4, 10: 16}])
def test_a_dataset_that_is_loaded_alone_has_the_strands_of_its_batches(dataset, batch):
    size = 8 if batch == 8 else 16
    by_hand = BatchOrder(
        dataset.braid_shuffle(seed=3, batch_size=size).repeat(2).map(double), batch
    )
    pending = BatchOrder(dataset.braid_shuffle(seed=3).repeat(2).map(double), batch)
    assert pending.describe() == by_hand.describe()
    assert pending.num_steps == by_hand.num_steps
    assert pending.functions == (double,)
    mapped_before = BatchOrder(dataset.map(double).braid_shuffle(seed=3).repeat(2), batch)
    assert mapped_before.describe() == by_hand.describe()


def test_a_loader_delivers_it(dataset):
    batches = [
        [np.asarray(batch.tokens) for batch in DataLoader(shuffled, batch_size=16)]
        for shuffled in (
            dataset.braid_shuffle(seed=3),
            dataset.braid_shuffle(seed=3, batch_size=16),
        )
    ]
    assert len(batches[0]) == -(-len(dataset) // 16)
    assert all((a == b).all() for a, b in zip(*batches, strict=True))
