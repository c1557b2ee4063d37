"""A mixture for the tests of the adapters."""

import pytest

from headrace.data import MixtureDataset, TokenSeqDataset
from headrace.testing import tiny_cache


@pytest.fixture(scope="session")
def sources():
    return {
        name: TokenSeqDataset(
            tiny_cache(documents=80, seed=s), seq_len=8, split_documents=True, name=name
        )
        for s, name in enumerate("ab")
    }


@pytest.fixture
def mixture(sources):
    shuffled = {name: s.braid_shuffle(seed=0, batch_size=8) for name, s in sources.items()}
    return lambda weight=2, **options: MixtureDataset(
        shuffled, {"a": weight, "b": 1}, batch_size=8, **options
    )
