"""Documents cut at multiples of a length: each piece is shuffled on its own, with its share of all
leaves, and numbers remain those of whole documents.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from headrace import TokenSeqDataset
from headrace.analysis.long_documents import document_shares
from headrace.data.documents import DocumentFilter, stored_documents, token_ranges
from headrace.errors import CacheCorruptError, ConfigError, PlanMismatchError
from headrace.ingest import ReshuffleConfig, reshuffle
from headrace.order.document_shuffle import DocumentShuffle
from headrace.order.intervals import Intervals
from headrace.store import CacheLayout, TokenCache, open_cache, verify
from headrace.store.layout import LeafSpec
from headrace.store.ledger import Ledger, read_ledger, write_ledger
from headrace.store.ragged import PartWriter
from headrace.store.snapshots import add_appended, remove_documents

SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
LAYOUT = CacheLayout("uint8", 32, 2)
LEAVES = [
    LeafSpec("loss_mask", "uint8"),
    LeafSpec("topk", "int32", width=2),
    LeafSpec("number", "int64", "fixed"),
    LeafSpec("url", "uint8"),
]


def write(root: str, parts: list[list[int]], seed: int = 0, mask: str = "loss_mask") -> TokenCache:
    """A cache of documents with these lengths, with leaves of all kinds."""
    specs = [LeafSpec(mask, "uint8"), *LEAVES[1:]]
    rng = np.random.default_rng(seed)
    records = []
    number = 0
    for k, lengths in enumerate(parts):
        writer = PartWriter(root, f"{k:05d}", LAYOUT, specs)
        for length in lengths:
            tokens = rng.integers(0, 256, length)
            size = np.array([length])
            url = np.frombuffer(f"u/{number}".encode(), np.uint8)
            leaves = {
                mask: ((tokens % 2).astype(np.uint8), size),
                "topk": (rng.integers(0, 99, 2 * length, np.int32), 2 * size),
                "number": (np.array([number]), None),
                "url": (url, np.array([url.size])),
            }
            writer.append(tokens, size, leaves)
            number += 1
        records.append(writer.close())
    tokenizer = {"vocab_size": 256, "fingerprint": "t", "path": "t", "file": None}
    ledger = Ledger(False, tokenizer, LAYOUT.to_dict(), leaves=[s.to_dict() for s in specs])
    write_ledger(root, ledger.complete(records))
    return open_cache(root)


def document(cache: TokenCache, place: int) -> list[Any]:
    return [cache.leaf(name).document(place).tolist() for name in ("input_ids", *cache.leaves)]


def cut_slowly(cache: TokenCache, split: int) -> list[list[Any]]:
    """The pieces of all documents in order, one by one."""
    pieces = []
    for number in range(cache.num_documents):
        tokens, mask, topk = (
            cache.leaf(name).document(number).tolist()
            for name in ("input_ids", "loss_mask", "topk")
        )
        others = [cache.leaf(name).document(number).tolist() for name in ("number", "url")]
        for at in range(0, max(len(tokens), 1), split):
            end = at + split
            # leaves in the order of their names
            pieces.append(
                [tokens[at:end], mask[at:end], others[0], topk[2 * at : 2 * end], others[1]]
            )
    return pieces


@settings(max_examples=6, phases=[Phase.explicit, Phase.generate])
@given(
    parts=st.lists(st.lists(st.integers(0, 90), max_size=12), min_size=1, max_size=3).filter(any),
    seed=st.integers(0, 2**64),
    split=st.integers(1, 40),
    part_bytes=st.integers(300, 5_000),
)
def test_pieces_are_shuffled_and_their_documents_keep_their_numbers(
    parts: list[list[int]], seed: int, split: int, part_bytes: int
):
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        cache = write(f"{root}/cache", parts)
        how = ReshuffleConfig(seed, part_bytes=part_bytes, split=split)
        report = reshuffle(cache, f"{root}/copy", how, engine="inline", progress=False)
        copy = open_cache(f"{root}/copy")
        pieces = cut_slowly(cache, split)
        order = DocumentShuffle(len(pieces), seed).originals(np.arange(len(pieces)))
        assert [document(copy, k) for k in range(copy.num_documents)] == [pieces[k] for k in order]
        assert (report.documents, report.pieces) == (cache.num_documents, len(pieces))
        assert (copy.num_originals, copy.num_documents) == (cache.num_documents, len(pieces))
        numbers = np.arange(cache.num_documents)
        assert copy.originals(copy.stored_at(numbers)).tolist() == [p[2][0] for p in pieces]
        for number in numbers.tolist():
            places = copy.stored_at([number]).tolist()
            whole = cache.document(number).tolist()
            assert np.concatenate([copy.document(place) for place in places]).tolist() == whole
            for k, place in enumerate(places):
                original = copy.original(place)
                assert (original.number, original.offset) == (number, k * split)
        assert verify(copy.path, deep=True).damages == []


@pytest.fixture
def cache(tmp_path: Path) -> TokenCache:
    return write(str(tmp_path / "cache"), [[5, 100, 3, 0], [64, 17, 250]])


HOW = ReshuffleConfig(3, part_bytes=500, split=16)


@pytest.fixture
def copy(cache: TokenCache, tmp_path: Path) -> TokenCache:
    reshuffle(cache, str(tmp_path / "copy"), HOW, progress=False)
    return open_cache(tmp_path / "copy")


def test_a_document_is_left_out_with_all_its_pieces(cache: TokenCache, copy: TokenCache):
    removed = DocumentFilter([1, 6]).of(copy)
    assert (removed.num_tokens, removed.not_found, removed.repeated) == (350, 0, 0)
    rows = TokenSeqDataset(copy, seq_len=16, removed=DocumentFilter([1, 6]))
    kept = np.concatenate([cache.document(k) for k in (0, 2, 3, 4, 5)])
    left = np.concatenate(
        [tokens for row in range(rows.length) for tokens in rows.read([row]).tokens]
    )
    assert np.isin(left, kept).all()
    with pytest.raises(ConfigError, match="the cache has 7"):
        DocumentFilter([7]).of(copy)
    train, validation = TokenSeqDataset(copy, seq_len=2).holdout_documents(one_in=3)
    held, kept = (set(copy.originals(sorted(_left(side))).tolist()) for side in (validation, train))
    assert (len(held), held & kept) == (2, set())


def _left(dataset: TokenSeqDataset) -> set[int]:
    return set(np.flatnonzero(~dataset.removal.which.mask(0, 32)).tolist())


def test_a_take_down_names_whole_documents_and_what_is_appended_follows_them(
    cache: TokenCache, copy: TokenCache
):
    appended = write(copy.path + "/appended/1", [[40, 3, 0, 7]], seed=1)
    add_appended(copy.path, copy.as_member, 1, appended.as_member)
    grown = open_cache(copy.path)
    assert grown.num_originals == 11
    assert grown.num_documents == copy.num_documents + 4
    numbers = np.array([10, 1, 7, 6])
    places = grown.stored_at(numbers)
    assert grown.originals(places).tolist() == [10, *[1] * 7, 7, *[6] * 16]
    assert grown.original(int(places[3])).offset == 32
    assert grown.original(int(places[0])).number == 10
    gone = Intervals.of_numbers(np.array([1, 10]))
    remove_documents(copy.path, copy.as_member, gone)
    removed = open_cache(copy.path).removed()
    assert removed.numbers(np.arange(removed.total)).tolist() == [1, 10]
    assert copy_tokens(grown, open_cache(copy.path).removed()) == 100 + 7


def copy_tokens(cache: TokenCache, documents: Intervals) -> int:
    return token_ranges(cache, stored_documents(cache, documents)).total


def test_a_copy_of_pieces_is_shuffled_again_by_the_same_numbers(
    cache: TokenCache, copy: TokenCache, tmp_path: Path
):
    reshuffle(copy, str(tmp_path / "again"), ReshuffleConfig(9), progress=False)
    again = open_cache(tmp_path / "again")
    assert again.stored_at([6]).tolist() != copy.stored_at([6]).tolist()
    for number in range(7):
        place = int(again.stored_at([number])[0])
        assert again.whole_document(place).tolist() == cache.document(number).tolist()
    with pytest.raises(ConfigError, match=r"split = 16: cuts documents of .*Shuffle its original"):
        reshuffle(copy, str(tmp_path / "c"), HOW, progress=False)


def test_bad_values_and_other_settings_are_refused(
    cache: TokenCache, copy: TokenCache, tmp_path: Path
):
    with pytest.raises(ConfigError, match="split = 0"):
        ReshuffleConfig(0, split=0)
    with pytest.raises(ConfigError, match=r"split = 16: cuts documents that stay together, 2 at"):
        reshuffle(cache, str(tmp_path / "c"), ReshuffleConfig(0, 2, split=16), progress=False)
    with pytest.raises(PlanMismatchError, match="split 16 there, none now"):
        reshuffle(cache, copy.path, ReshuffleConfig(3, part_bytes=500), progress=False)
    assert reshuffle(cache, copy.path, HOW, progress=False).parts_built == 0
    ledger = read_ledger(copy.path)
    assert ledger is not None
    shuffled = {**ledger.metadata["shuffled"], "pieces": "AAAA"}
    write_ledger(
        copy.path, Ledger(**{**vars_of(ledger), "metadata": {"shuffled": shuffled}, "digest": ""})
    )
    with pytest.raises(CacheCorruptError, match=r"does not say how its documents were cut"):
        open_cache(copy.path).stored_at([0])


def vars_of(ledger: Ledger) -> dict[str, Any]:
    return {name: getattr(ledger, name) for name in ledger.__struct_fields__}


def test_forecasts_see_no_document_longer_than_a_row(cache: TokenCache, copy: TokenCache):
    reshuffle(cache, copy.path + "-whole", ReshuffleConfig(3), progress=False)
    whole, pieces = (
        document_shares(TokenSeqDataset(path, seq_len=16))
        for path in (copy.path + "-whole", copy.path)
    )
    assert max(whole) > 16
    assert set(pieces) == {2}
