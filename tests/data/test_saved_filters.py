"""Filters saved beside a cache mean what those mean that are worked out anew, whatever became of
the folder.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data import (
    PackedTokenDataset,
    PlannedDataset,
    TokenSeqDataset,
    filter_files,
    token_seq,
)
from headrace.data import documents as documents_module
from headrace.data.documents import DocumentFilter
from headrace.data.saved_filters import RemovedDocuments, filter_findings
from headrace.errors import CacheCorruptError, ConfigError
from headrace.order import intervals
from headrace.order.bits import Bits
from headrace.store import TokenCache, files, open_cache
from headrace.testing import FaultProxy, web_server, write_cache
from headrace.testing.caches import random_documents

DOCUMENTS = 600
SEQ_LEN = 8


@pytest.fixture
def cache(tmp_path) -> TokenCache:
    documents = random_documents(DOCUMENTS, seed=3)
    return write_cache(tmp_path / "cache", [documents[:250], documents[250:251], documents[251:]])


@pytest.fixture
def small(monkeypatch):
    """All is saved, as it is of a long list."""
    monkeypatch.setattr(filter_files, "_WORTH_SAVING", 1)
    monkeypatch.setattr(intervals, "_FEW", 4)


def folders(cache: TokenCache) -> list[Path]:
    return sorted(Path(cache.path, "filters").glob("*"))


def facts(removed: RemovedDocuments) -> tuple[object, ...]:
    counts = (
        removed.num_documents,
        removed.num_tokens,
        removed.listed,
        removed.repeated,
        removed.not_found,
    )
    return (
        *counts,
        removed.documents_digest,
        removed.tokens_digest,
        repr(removed.documents),
        repr(removed.tokens),
    )


def of_rows(cache: TokenCache, removed: object) -> tuple[object, ...]:
    datasets = (
        TokenSeqDataset(cache, SEQ_LEN, removed=removed),
        PackedTokenDataset(cache, 64, removed=removed),
    )
    return tuple((d.describe(), d.read(list(range(len(d)))).tokens.tolist()) for d in datasets)


def worked_out(cache: TokenCache, numbers: object, **settings: bool) -> RemovedDocuments:
    """The same with nothing saved."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filter_files, "_WORTH_SAVING", 1 << 40)
        return DocumentFilter(numbers, **settings).of(cache)


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> TokenCache:
    documents = random_documents(DOCUMENTS, seed=4)
    return write_cache(
        tmp_path_factory.mktemp("shared") / "cache", [documents[:250], documents[250:]]
    )


@settings(max_examples=12)
@given(
    numbers=st.lists(st.integers(0, DOCUMENTS - 1), min_size=1, max_size=200),
    bitmap=st.booleans(),
    few=st.sampled_from([0, 4, 1 << 20]),
    chunk=st.sampled_from([64, 1 << 20]),
)
def test_what_is_found_is_what_is_worked_out(shared, numbers, bitmap, few, chunk):
    cache = shared
    given_as = np.isin(np.arange(DOCUMENTS), numbers) if bitmap else np.array(numbers)
    expected = worked_out(cache, given_as)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filter_files, "_WORTH_SAVING", 1)
        patch.setattr(filter_files, "_CHUNK", chunk)
        patch.setattr(intervals, "_FEW", few)
        first = DocumentFilter(given_as).of(cache)
        patch.setattr(documents_module, "remove", None)
        second = DocumentFilter(given_as).of(cache)
    assert facts(first) == facts(second) == facts(expected)
    assert second.folder in map(str, folders(cache))
    if expected.num_documents < DOCUMENTS // 2:
        assert of_rows(cache, second) == of_rows(cache, expected)


def test_what_is_little_is_not_saved(cache):
    assert DocumentFilter([1, 5]).of(cache).folder == ""
    assert folders(cache) == []


def test_another_filter_is_never_found(cache, small):
    filters = [[1, 5], [1, 6], [1, 5, 5], np.isin(np.arange(DOCUMENTS), [1, 5])]
    assert [facts(DocumentFilter(one).of(cache)) for one in filters] == [
        facts(worked_out(cache, one)) for one in filters
    ]
    assert len(folders(cache)) == len(filters)
    first, second = (folder / "filter.json" for folder in folders(cache)[:2])
    first.write_bytes(second.read_bytes())  # moved to where another one lies
    assert [facts(DocumentFilter(one).of(cache)) for one in filters] == [
        facts(worked_out(cache, one)) for one in filters
    ]


def test_a_file_is_known_by_what_it_holds(cache, small, monkeypatch, tmp_path):
    monkeypatch.setattr(filter_files, "_LARGE", 0)
    path = tmp_path / "ids.txt"
    for text in ("3\n4\n", "3\n5\n"):
        path.write_text(text)
        os.utime(path, (1, 1))
        removed = [DocumentFilter.load(str(path)).of(cache) for _ in range(2)]
        assert (
            facts(removed[0])
            == facts(removed[1])
            == facts(worked_out(cache, [int(n) for n in text.split()]))
        )
    assert len(folders(cache)) == 2
    np.save(tmp_path / "ids.npy", np.array([9, 3, 9]))
    for _ in range(2):
        removed = DocumentFilter.load(f"{tmp_path}/ids.npy").of(cache)
        assert facts(removed) == facts(worked_out(cache, [9, 3, 9]))
        monkeypatch.setattr(
            filter_files, "read_npy", None
        )  # the second start does not look into it
    with pytest.raises(ConfigError, match="does not exist"):
        DocumentFilter.load(f"{tmp_path}/nothing.npy").of(cache)


def test_a_file_that_changes_is_never_saved_as_the_other(cache, small, monkeypatch, tmp_path):
    monkeypatch.setattr(filter_files, "_LARGE", 0)
    path = tmp_path / "ids.txt"
    read = documents_module.read_listing
    path.write_text("3\n4\n")
    first = DocumentFilter.load(str(path))
    assert first.listed == 2
    path.write_text("3\n5\n")
    assert facts(first.of(cache)) == facts(worked_out(cache, [3, 4]))
    assert facts(DocumentFilter.load(str(path)).of(cache)) == facts(worked_out(cache, [3, 5]))

    def write_and_read(url, field):
        path.write_text("3\n6\n")
        return read(url, field)

    path.write_text("3\n7\n")
    monkeypatch.setattr(documents_module, "read_listing", write_and_read)
    with pytest.raises(ConfigError, match=r"changed after it was opened"):
        DocumentFilter.load(str(path)).of(cache)
    assert len(folders(cache)) == 2
    assert facts(DocumentFilter.load(str(path)).of(cache)) == facts(worked_out(cache, [3, 6]))


def test_numbers_that_are_not_found_are_refused_though_they_are_counted_elsewhere(cache, small):
    for _ in range(2):
        assert DocumentFilter([1, 5, 700], count_not_found=True).of(cache).not_found == 1
        with pytest.raises(ConfigError, match="is not a document") as caught:
            DocumentFilter([1, 5, 700], name="components.web.remove").of(cache)
        assert (caught.value.field, caught.value.value) == ("components.web.remove", 700)


@pytest.mark.parametrize("harm", [None, b"", b"{}", b"[" * 9999, "cut", "flip"])
def test_a_damaged_folder_costs_time_only(cache, small, harm):
    numbers = list(range(0, DOCUMENTS, 3))
    expected = facts(worked_out(cache, numbers))
    DocumentFilter(numbers).of(cache)
    (folder,) = folders(cache)
    for path in sorted(folder.glob("*.*")):
        raw = path.read_bytes()
        if harm is None:
            path.unlink()
        else:
            flipped = raw[:-2] + bytes([raw[-2] ^ 1]) + raw[-1:]
            path.write_bytes(
                {"cut": raw[:-1], "flip": flipped}[harm] if isinstance(harm, str) else harm
            )
        assert facts(DocumentFilter(numbers).of(cache)) == expected
        assert filter_findings(cache.path) == []


def test_a_piece_that_is_damaged_is_never_used(cache, small):
    numbers = list(range(0, DOCUMENTS, 3))
    DocumentFilter(numbers).of(cache)
    (folder,) = folders(cache)
    path = folder / "gaps-more.bin"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    removed = DocumentFilter(numbers).of(cache)  # which does not read it
    with pytest.raises(
        CacheCorruptError, match=r"gaps-more.*another digest.*Delete the filter's folder"
    ):
        removed.removal.stored(np.array([1]))
    assert [Path(file).name for file, _ in filter_findings(cache.path)] == ["gaps-more.bin"]


def test_a_folder_that_cannot_be_written_costs_time_only(cache, small):
    Path(cache.path, "filters").write_text("no folder")
    for _ in range(2):
        assert facts(DocumentFilter([3, 5]).of(cache)) == facts(worked_out(cache, [3, 5]))


SAVER = """
import sys, numpy as np
from headrace.data import filter_files
from headrace.data.documents import DocumentFilter
from headrace import open_cache
from headrace.store import TokenCache
filter_files._WORTH_SAVING = 1
print("ready", flush=True)
for number in range(100):
    DocumentFilter(np.arange(number, 600, 7)).of(open_cache(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_kill_while_it_is_saved_leaves_nothing_half(cache, small):
    for wait_s in (0.005, 0.02, 0.05):
        with subprocess.Popen(
            [sys.executable, "-c", SAVER, cache.path], stdout=subprocess.PIPE
        ) as saver:
            assert saver.stdout is not None
            saver.stdout.readline()
            time.sleep(wait_s)
            saver.kill()
        assert filter_findings(cache.path) == []
    for number in range(8):
        numbers = np.arange(number, DOCUMENTS, 7)
        assert facts(DocumentFilter(numbers).of(cache)) == facts(worked_out(cache, numbers))


def test_a_cache_on_the_web_is_read_by_range_and_never_written(cache, small):
    numbers = list(range(0, DOCUMENTS, 3))
    expected = facts(worked_out(cache, numbers))
    with web_server(Path(cache.path).parent) as url, FaultProxy(url) as proxy:
        remote = f"{proxy.url}/cache"
        assert facts(DocumentFilter(numbers).of(open_cache(remote))) == expected
        assert folders(cache) == []
        TokenSeqDataset(cache, SEQ_LEN, removed=DocumentFilter(numbers))
        opened = open_cache(remote)
        before = len(proxy.log)
        dataset = TokenSeqDataset(opened, SEQ_LEN, removed=DocumentFilter(numbers))
        assert len(proxy.log) - before == dataset.opening_requests(1)
        assert dataset.opening_requests(8) > dataset.opening_requests(1) > 0
        shuffled = dataset.braid_shuffle(seed=0)
        assert isinstance(shuffled, PlannedDataset)
        assert shuffled.opening_requests(8) == dataset.opening_requests(8)
        assert dataset.removal.folder.startswith(remote)
        assert facts(dataset.removal) == expected


def test_datasets_with_a_saved_filter_travel_to_other_processes(cache, small):
    for _ in range(2):
        for dataset in (TokenSeqDataset, PackedTokenDataset):
            one = dataset(cache, 64, removed=DocumentFilter(np.arange(0, DOCUMENTS, 3)))
            again = pickle.loads(pickle.dumps(one))
            assert again.read([1, 4]).tokens.tolist() == one.read([1, 4]).tokens.tolist()
            assert facts(again.removal) == facts(one.removal)


def test_nothing_and_all_but_one_document(cache, small):
    for numbers in ([], np.zeros(DOCUMENTS, bool), np.arange(DOCUMENTS - 1), np.arange(100, 400)):
        expected = of_rows(cache, worked_out(cache, numbers))
        for _ in range(2):
            assert of_rows(cache, DocumentFilter(numbers)) == expected


def test_a_flipped_bit_anywhere_is_worked_out_again_or_refused(cache, small, monkeypatch):
    """Of a filter with what is held out beside it; and whatever is read comes as it was written."""
    monkeypatch.setattr(token_seq, "_MANY", 1)
    numbers = list(range(0, DOCUMENTS, 5))

    def rows() -> list[object]:
        dataset = TokenSeqDataset(cache, SEQ_LEN, removed=DocumentFilter(numbers))
        return [
            side.read(list(range(len(side)))).tokens.tolist()
            for side in dataset.holdout_documents(10, seed=4)
        ]

    expected = rows()
    for path in sorted(one for one in Path(cache.path, "filters").glob("**/*") if one.is_file()):
        raw = bytearray(path.read_bytes())
        for at in (0, len(raw) // 2, len(raw) - 1):
            path.write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
            try:
                found = rows()
            except CacheCorruptError as error:
                found = expected if path.name in str(error) else [error]
            assert found == expected
            path.write_bytes(raw)


def test_many_make_the_same_at_once(cache, small):
    numbers = np.arange(0, DOCUMENTS, 3)
    with ThreadPoolExecutor(8) as pool:
        every = list(
            pool.map(lambda _: facts(DocumentFilter(numbers).of(open_cache(cache.path))), range(32))
        )
    assert every == [facts(worked_out(cache, numbers))] * 32
    assert filter_findings(cache.path) == []
    assert not list(Path(cache.path, "filters").glob("*/*.tmp"))


def test_what_is_held_out_is_saved_beside_large_caches(cache, monkeypatch):
    numbers = list(range(0, DOCUMENTS, 5))

    def sides() -> list[tuple[object, ...]]:
        dataset = TokenSeqDataset(cache, SEQ_LEN, removed=DocumentFilter(numbers))
        return [
            (side.describe(), *facts(side.removal)[:2], side.read([0, 1]).tokens.tolist())
            for side in dataset.holdout_documents(10, seed=4)
        ]

    expected = sides()
    assert folders(cache) == []
    monkeypatch.setattr(token_seq, "_MANY", 1)
    assert sides() == expected
    assert len(folders(cache)) == 2
    monkeypatch.setattr(token_seq, "held_out", None)
    assert sides() == expected


def test_the_bits_of_many_documents_are_read_where_they_lie(cache, small, monkeypatch):
    monkeypatch.setattr(filter_files, "_CHUNK", 64)
    numbers = np.random.default_rng(0).permutation(DOCUMENTS)[:300]
    DocumentFilter(numbers).of(cache)
    removed = DocumentFilter(numbers).of(cache)
    assert isinstance(removed.which, Bits)
    assert not isinstance(removed.which.bits, np.ndarray)
    record = json.loads((files.read_bytes(f"{removed.folder}/filter.json") or b"").split(b"\n")[1])
    assert record["made_from"]["cache"] == cache.fingerprint
