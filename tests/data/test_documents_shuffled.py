"""Of a shuffled store, filters and hold-outs mean the documents of the original."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data import PackedTokenDataset, TokenSeqDataset
from headrace.data.documents import DocumentFilter
from headrace.errors import ConfigError
from headrace.ingest import ReshuffleConfig, reshuffle
from headrace.store import open_cache
from headrace.testing import write_cache

DOCUMENTS = 90


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """A cache in which each document is told by its tokens, and its copy shuffled in units of 2."""
    root = tmp_path_factory.mktemp("shuffled")
    documents = [np.full(3 + k % 7, k + 1) for k in range(DOCUMENTS)]
    plain = write_cache(root / "plain", [documents[:42], documents[42:]])
    reshuffle(plain, str(root / "copy"), ReshuffleConfig(4, unit=2, part_bytes=700), progress=False)
    return plain, open_cache(root / "copy")


def left(dataset) -> list[int]:
    """Documents of which some token is in a row; 0 is padding."""
    every = dataset.read(list(range(len(dataset)))).tokens
    return sorted({token - 1 for token in np.unique(np.asarray(every)).tolist() if token})


@given(numbers=st.lists(st.integers(0, DOCUMENTS - 1), max_size=40))
def test_a_list_removes_the_same_documents(caches, numbers):
    plain, shuffled = (DocumentFilter(numbers).of(cache) for cache in caches)
    assert (plain.num_documents, plain.num_tokens) == (shuffled.num_documents, shuffled.num_tokens)
    assert (plain.listed, plain.repeated) == (shuffled.listed, shuffled.repeated)
    places = shuffled.documents.numbers(np.arange(shuffled.documents.total))
    assert sorted(caches[1].originals(places).tolist()) == sorted(set(numbers))
    ends = np.cumsum(caches[1].lengths())
    of_token = np.searchsorted(
        ends, shuffled.tokens.numbers(np.arange(shuffled.num_tokens)), side="right"
    )
    assert sorted(set(caches[1].originals(of_token).tolist())) == sorted(set(numbers))


def test_bitmaps_and_numbers_that_are_not_found(caches):
    bitmap = np.arange(DOCUMENTS) % 5 == 0
    for cache in caches:
        removed = DocumentFilter(bitmap).of(cache)
        assert sorted(cache.originals(removed.documents.numbers(np.arange(18))).tolist()) == list(
            range(0, 90, 5)
        )
        assert DocumentFilter([1, 1, 900], count_not_found=True).of(cache).not_found == 1
        with pytest.raises(ConfigError, match="is not a document"):
            DocumentFilter([900]).of(cache)


@pytest.mark.parametrize("unit", [1, 2])
def test_the_same_documents_are_held_out(caches, unit):
    sides = []
    for cache in caches:
        dataset = PackedTokenDataset(
            cache, 20, unit=unit, long="drop", removed=DocumentFilter([0, 1, 44, 45])
        )
        sides.append([left(side) for side in dataset.holdout_documents(5, seed=3)])
    assert sides[0] == sides[1]
    assert len(sides[0][1]) > 10
    assert not set(sides[0][0]) & set(sides[0][1])
    assert not {0, 1, 44, 45} & {d for side in sides[0] for d in side}


def test_windows_hold_out_the_same_documents_too(caches):
    held = [TokenSeqDataset(cache, 4).holdout_documents(3)[1].removal.documents for cache in caches]
    numbers = [held[k].numbers(np.arange(held[k].total)) for k in range(2)]
    assert sorted(caches[1].originals(numbers[1]).tolist()) == numbers[0].tolist()


def test_units_that_were_parted_are_refused(caches):
    PackedTokenDataset(caches[0], 30, unit=3, long="drop")
    with pytest.raises(ConfigError, match=r"unit = 3: is not kept by .*units of 2"):
        PackedTokenDataset(caches[1], 30, unit=3, long="drop")
