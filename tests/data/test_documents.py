"""Filters as users give them, and the tokens that they mean."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.documents import DocumentFilter, token_ranges
from headrace.errors import ConfigError
from headrace.order.intervals import Intervals
from headrace.store import CacheLayout, TokenCache
from headrace.store.leaf import LeafPart
from headrace.testing import tiny_cache, write_cache
from headrace.testing.caches import CountingArray, random_documents


def members(s: Intervals) -> list[int]:
    return [x for a, b in zip(s.start.tolist(), s.stop.tolist(), strict=True) for x in range(a, b)]


@given(st.lists(st.integers(0, 99)))
def test_numbers_and_bitmaps_mean_the_same(numbers):
    bitmap = np.zeros(100, bool)
    bitmap[numbers] = True
    wanted = sorted(set(numbers))
    for given_as in (
        numbers,
        np.array(numbers, np.uint32),
        np.array(numbers[::-1], np.int64),
        bitmap,
    ):
        assert members(DocumentFilter(given_as).among(100)) == wanted


def test_files_mean_the_same(tmp_path):
    numbers = np.array([7, 2, 3, 7])
    bitmap = np.isin(np.arange(10), [2, 3, 7])
    np.save(tmp_path / "ids.npy", numbers)
    np.save(tmp_path / "ids32.npy", numbers.astype(np.uint32))
    np.save(tmp_path / "bitmap.npy", bitmap)
    (tmp_path / "ids.txt").write_text("7\n2\n\n 3 \r\n7")
    for name in ("ids.npy", "ids32.npy", "bitmap.npy", "ids.txt"):
        for url in (f"{tmp_path}/{name}", f"file://{tmp_path}/{name}"):
            assert members(DocumentFilter.load(url).among(10)) == [2, 3, 7]
    (tmp_path / "none.txt").write_text("\n")
    assert members(DocumentFilter.load(f"{tmp_path}/none.txt").among(10)) == []


def test_a_filter_is_read_from_a_url():
    import fsspec

    fsspec.filesystem("memory").pipe_file("/filters/ids.txt", b"4\n5\n")
    assert members(DocumentFilter.load("memory://filters/ids.txt").among(6)) == [4, 5]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"1\n2\nthree\n4", "line 3 is not a document number: 'three'"),
        (b"1\n-2\n", "line 2 is not a document number: '-2'"),
        (b"1.5\n", "line 1 is not a document number: '1.5'"),
        (b"1 2\n", "line 1 is not a document number: '1 2'"),
        (b"99999999999999999999\n", "line 1 is not a document number"),
        (b"\xff\xfe\n", "line 1 is not a document number"),
    ],
)
def test_a_bad_line_is_named(tmp_path, content, problem):
    path = tmp_path / "ids.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        DocumentFilter.load(str(path), name="components.web.remove")
    assert problem in str(caught.value)
    assert (caught.value.field, caught.value.value) == ("components.web.remove", str(path))


def test_what_is_no_filter_is_refused(tmp_path):
    for bad in (np.zeros((2, 2), np.int64), np.array([0.5]), np.array(["a"])):
        with pytest.raises(ConfigError, match="is no list of documents"):
            DocumentFilter(bad)
    with pytest.raises(ConfigError, match="names a negative document"):
        DocumentFilter([3, -1])
    with pytest.raises(ConfigError, match="is no document"):
        DocumentFilter(np.array([2**64 - 1], np.uint64))
    with pytest.raises(ConfigError, match="does not exist"):
        DocumentFilter.load(f"{tmp_path}/nothing.npy")
    (tmp_path / "text.npy").write_text("1\n2\n")
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    np.save(tmp_path / "letters.npy", np.array([1]))
    raw = (tmp_path / "letters.npy").read_bytes()
    (tmp_path / "letters.npy").write_bytes(
        raw.replace(b"'<i8'", b"'<a8'")
    )  # a dtype to NumPy before 2.5
    with pytest.raises(
        ConfigError, match=r"is no list of documents|is not a \.npy file of numbers"
    ):
        DocumentFilter.load(f"{tmp_path}/letters.npy")
    for name in ("text.npy", "objects.npy"):
        with pytest.raises(ConfigError, match=r"is not a \.npy file of numbers"):
            DocumentFilter.load(f"{tmp_path}/{name}")


def test_a_filter_of_another_cache_is_refused():
    with pytest.raises(ConfigError, match="is a bitmap of 3 documents, but the cache has 4"):
        DocumentFilter(np.zeros(3, bool)).among(4)
    with pytest.raises(ConfigError, match="the cache has 4") as caught:
        DocumentFilter([0, 4], name="components.web.remove").among(4)
    assert (caught.value.field, caught.value.value) == ("components.web.remove", 4)
    assert members(DocumentFilter([0, 3]).among(4)) == [0, 3]


@pytest.fixture(scope="module")
def three_parts(tmp_path_factory) -> TokenCache:
    documents = random_documents(60, seed=3)
    return write_cache(
        tmp_path_factory.mktemp("c") / "c", [documents[:25], [], documents[25:26], documents[26:]]
    )


@given(st.sets(st.integers(0, 59)))
def test_ranges_are_the_tokens_of_the_documents(three_parts, numbers):
    lengths = three_parts.lengths()
    of_document = np.repeat(np.arange(60), lengths)
    found = token_ranges(three_parts, Intervals.of_numbers(np.array(sorted(numbers), np.int64)))
    assert members(found) == np.flatnonzero(np.isin(of_document, sorted(numbers))).tolist()


def test_only_offsets_of_filtered_documents_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(CacheLayout, "offsets", lambda self: CacheLayout("int64", 16, 4))
    cache = tiny_cache(tmp_path / "c", documents=2000)
    offsets = CountingArray(cache.parts[0].offsets.url, 2001, cache.parts[0].offsets.layout)
    part = LeafPart(2000, cache.parts[0].data, offsets)
    seen = TokenCache(cache.path, cache.ledger, lambda name, number: part)
    removed = np.array([100, 101, 102, 1000, 1010, 1999])
    lengths = cache.lengths()
    assert token_ranges(seen, Intervals.of_numbers(removed)).total == lengths[removed].sum()
    assert offsets.reads == 3  # 1000 and 1010 lie in chunks that follow each other
    assert offsets.elements < 40


def test_memory_follows_the_filter_not_the_cache(tmp_path):
    cache = write_cache(tmp_path / "c", [[np.zeros(1, np.int64)] * 50_000])
    documents = Intervals.of_numbers(np.array([5, 49_000]))
    token_ranges(cache, documents)
    tracemalloc.start()
    try:
        token_ranges(cache, documents)
        assert tracemalloc.get_traced_memory()[1] < 100_000  # all offsets would be 400,000 bytes
    finally:
        tracemalloc.stop()


def test_a_list_that_names_its_cache_is_refused_for_another(tmp_path):
    one, other = (tiny_cache(tmp_path / str(n), documents=30, seed=n) for n in (1, 2))
    path = tmp_path / "ids.txt"
    path.write_text(f"# duplicates of 2026-11\n# cache: {one.fingerprint}\n3\n\n5\n")
    assert DocumentFilter.load(str(path)).of(one).documents.numbers(np.arange(2)).tolist() == [3, 5]
    with pytest.raises(ConfigError, match=f"is of another cache: it names {one.fingerprint}"):
        DocumentFilter.load(str(path)).of(other)
    path.write_text("# a comment\n3\n# x\nfive\n")
    with pytest.raises(ConfigError, match="line 4 is not a document number: 'five'"):
        DocumentFilter.load(str(path))
