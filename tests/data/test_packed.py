"""Packed rows of a cache: the documents, end to end; shuffled, mixed, held out and resumed like any
rows.
"""

import logging
import os
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data import MixtureDataset, PackedTokenDataset, PlannedDataset, TokenSeqDataset
from headrace.data.component import account
from headrace.data.documents import DocumentFilter
from headrace.errors import ConfigError
from headrace.feed import DataLoader
from headrace.store import CacheLayout
from headrace.testing import tiny_cache, write_cache

SCRATCH = "/dev/shm" if os.path.isdir("/dev/shm") else None
ALGORITHMS = ("bfd", "ffd", "next_fit", "bfd_split", "wrap", "windowed")


def unpacked(dataset: PlannedDataset) -> list[list[int]]:
    """Segments of all rows; checks that what is not a segment is padding."""
    batch = dataset.read(np.arange(len(dataset)))
    segments = []
    for row, lengths in zip(batch.tokens.tolist(), batch.segment_lengths.tolist(), strict=True):
        ends = np.cumsum(lengths).tolist()
        segments += [row[b - n : b] for b, n in zip(ends, lengths, strict=True) if n]
        assert row[ends[-1] :] == [0] * (len(row) - ends[-1])
    return segments


@settings(max_examples=30)
@given(
    lengths=st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=1, max_size=3),
    seq_len=st.integers(2, 20),
    chunk=st.integers(1, 50),
    algorithm=st.sampled_from(ALGORITHMS),
)
def test_unpacking_rows_gives_the_documents_back(lengths, seq_len, chunk, algorithm):
    rng = np.random.default_rng(0)
    parts = [[rng.integers(1, 256, n) for n in part] for part in lengths]
    documents = [d.tolist() for part in parts for d in part if d.size]
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        cache = write_cache(root, parts, layout=CacheLayout("uint8", chunk, 3))
        if not documents:
            with pytest.raises(ConfigError, match="no packs"):
                PackedTokenDataset(cache, seq_len, algorithm=algorithm)
            return
        dataset = PackedTokenDataset(cache, seq_len, algorithm=algorithm)
        pieces = unpacked(dataset)
        assert sum(map(len, pieces)) == cache.num_tokens
        assert dataset.padding_tokens == len(dataset) * seq_len - cache.num_tokens
        if algorithm != "wrap":
            cut = [d[a : a + seq_len] for d in documents for a in range(0, len(d), seq_len)]
            assert sorted(pieces) == sorted(cut)
        else:
            assert [t for p in pieces for t in p] == [t for d in documents for t in d]
        assert dataset.blocks_per_row() >= 1


@pytest.fixture
def cache(tmp_path):
    return tiny_cache(tmp_path / "cache", documents=120, parts=2)


@pytest.fixture
def dataset(cache):
    return PackedTokenDataset(cache, 64)


def test_rows_one_by_one_and_shuffled_are_the_rows(dataset):
    every = dataset.read(np.arange(len(dataset)))
    order = np.random.default_rng(0).permutation(len(dataset))
    again = dataset.read(order)
    assert np.array_equal(again.tokens, every.tokens[order])
    assert np.array_equal(again.segment_lengths, every.segment_lengths[order])
    for k in order[:5].tolist():
        one = dataset.read([k])
        assert np.array_equal(one.tokens[0], every.tokens[k])
        assert np.array_equal(one.segment_ids[0], every.segment_ids[k])
    assert dataset.read([]).tokens.shape == (0, 64)
    shuffled = dataset.shuffle(seed=1).read(np.arange(len(dataset)))
    assert sorted(map(tuple, shuffled.tokens.tolist())) == sorted(map(tuple, every.tokens.tolist()))


def test_every_shuffle_repeat_and_holdout_works(dataset):
    n = len(dataset)
    for order in (
        dataset.braid_shuffle(seed=0, strands=4),
        dataset.block_shuffle(seed=0, window_blocks=2),
        dataset.era_shuffle(8, seed=0),
    ):
        rows = order.locate(np.arange(n)).row
        assert sorted(rows.tolist()) == list(range(n))
    assert dataset.repeat(2).read([0, n]).tokens[1].tolist() == dataset.read([0]).tokens[0].tolist()
    train, validation = dataset.holdout(one_in=5, io_block_size=2)
    rows = [d.locate(np.arange(len(d))).row.tolist() for d in (train, validation)]
    assert not set(rows[0]) & set(
        rows[1]
    )  # packs hold whole documents, so no document is on both sides
    assert sorted([*rows[0], *rows[1]]) == list(range(n))


def test_packed_and_plain_rows_mix(cache, dataset):
    plain = TokenSeqDataset(cache, 64)
    mixture = MixtureDataset(
        {"packed": dataset, "plain": plain}, {"packed": 1, "plain": 1}, batch_size=4
    )
    batch = mixture.read(np.arange(8))
    assert batch.segment_lengths is not None
    packed = batch.source_id == 0
    assert packed.any()
    assert (batch.segment_lengths[~packed, 0] == 64).all()
    assert (batch.segment_ids[~packed] == 0).all()
    assert np.array_equal(batch.tokens[~packed], plain.read(np.arange((~packed).sum())).tokens)
    assert np.array_equal(
        batch.segment_lengths[packed], dataset.read(np.arange(packed.sum())).segment_lengths
    )


@pytest.mark.parametrize("seq_len", [32, 128])  # rows of one or two documents, and of many
@pytest.mark.parametrize("mapped", [False, True])
def test_through_a_loader_and_resumed(cache, mapped, seq_len):
    dataset = PackedTokenDataset(cache, seq_len)
    order = dataset.shuffle(seed=3).map(_as_it_is) if mapped else dataset.shuffle(seed=3)
    with DataLoader(order, 8, row_order="stream") as loader:
        steps = list(loader)
        later = list(loader.iter_from_step(2))
    assert len(later) == len(steps) - 2
    for step, batch in enumerate(steps):
        rows = np.arange(step * 8, min(step * 8 + 8, len(dataset)))
        wanted = order.read(rows)
        here = rows.size
        assert np.array_equal(batch.tokens[:here], wanted.tokens)
        assert np.array_equal(batch.segment_ids[:here], wanted.segment_ids)
        assert np.array_equal(batch.token_weights[:here], wanted.token_weights)
        assert float(np.asarray(batch.token_weights)[here:].sum()) == 0
        if step >= 2:
            assert np.array_equal(later[step - 2].tokens, batch.tokens)


def _as_it_is(batch):
    return batch


def test_segments_are_those_of_the_plan_not_of_end_of_text_tokens(tmp_path):
    documents = [
        np.array([5, 9, 6, 9]),
        np.array([7, 7]),
    ]  # 9 ends texts, and one stands within a document
    cache = write_cache(tmp_path, [documents], eos_id=9)
    batch = PackedTokenDataset(cache, 8).read([0])
    assert batch.segment_ids.tolist() == [[0, 0, 0, 0, 1, 1, -1, -1]]
    assert batch.labels.tolist() == [[9, 6, 9, 0, 7, 0, 0, 0]]
    assert batch.token_weights.tolist() == [[1, 1, 1, 0, 1, 0, 0, 0]]
    assert batch.cu_seqlens.tolist() == [[0, 4, 6, 8]]


def test_documents_can_be_left_out(cache):
    whole = PackedTokenDataset(cache, 64, algorithm="bfd")
    left_out = np.arange(0, 120, 7)
    some = PackedTokenDataset(cache, 64, algorithm="bfd", removed=DocumentFilter(left_out))
    packed = set(some.plan.items.document.tolist())
    assert not packed & set(left_out.tolist())
    assert packed == set(whole.plan.items.document.tolist()) - set(left_out.tolist())
    assert some.describe() != whole.describe()


@settings(max_examples=60)
@given(
    st.integers(1, 3),
    st.lists(st.lists(st.integers(0, 12), max_size=12), min_size=1, max_size=3),
    st.sets(st.integers(0, 35)),
    st.sampled_from([0.0, 0.9]),
    st.integers(2, 4),
)
def test_every_token_of_units_is_in_a_row_or_in_a_counter(
    unit, lengths, left_out, min_fill, one_in
):
    lengths = [part[: len(part) // unit * unit] for part in lengths]
    size = np.array([n for part in lengths for n in part], np.int64)
    gone = np.isin(np.arange(size.size), [*left_out])
    lacking = np.repeat((gone | (size == 0)).reshape(-1, unit).any(axis=1), unit)
    alone = lacking & ~gone & (size > 0)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        cache = write_cache(root, [[np.arange(1, n + 1) for n in part] for part in lengths])
        removed = DocumentFilter(np.flatnonzero(gone))
        try:
            rows = PackedTokenDataset(
                cache, 16, long="drop", unit=unit, min_fill=min_fill, removed=removed
            )
        except ConfigError as error:
            assert "no packs" in str(error)  # noqa: PT017
            return
        counts = rows.plan.counts
        assert (rows.incomplete_documents, rows.incomplete_tokens) == (
            alone.sum(),
            size[alone].sum(),
        )
        assert (
            counts.empty_documents
            == rows.removed_documents + alone.sum() + (~gone & (size == 0)).sum()
        )
        in_no_row = (
            rows.incomplete_tokens
            + counts.dropped_tokens
            + counts.truncated_tokens
            + counts.underfilled_tokens
        )
        assert rows.dropped_tokens == in_no_row
        assert size.sum() == counts.packed_tokens + rows.removed_tokens + in_no_row
        assert sum(map(len, unpacked(rows))) == counts.packed_tokens
        sides = (rows, None)
        try:
            sides = rows.holdout_documents(one_in)
            assert sum(side.incomplete_documents for side in sides) == rows.incomplete_documents
        except ConfigError:
            pass  # too few for two sides
        found = account(rows, *sides)
        assert (found.incomplete_documents, found.incomplete_tokens) == (
            alone.sum(),
            size[alone].sum(),
        )
        in_rows = found.train_tokens + found.validation_tokens
        assert found.tokens == in_rows + found.removed_tokens + found.dropped_tokens
        assert found.dropped_tokens >= found.incomplete_tokens


def test_what_is_alone_in_its_unit_is_logged(tmp_path, caplog):
    cache = write_cache(tmp_path, [[np.arange(n) for n in (3, 4, 5, 0, 6, 7)]])
    with caplog.at_level(logging.INFO, "headrace"):
        PackedTokenDataset(cache, 16, long="drop", unit=2, removed=DocumentFilter([0]))
    assert "2 documents with 9 tokens are in no pack" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "headrace"):
        PackedTokenDataset(cache, 16, removed=DocumentFilter([0]))
    assert "in no pack" not in caplog.text


def test_plans_are_kept_beside_the_cache_and_describe_the_dataset(cache, tmp_path):
    first = PackedTokenDataset(cache, 64)
    again = PackedTokenDataset(cache, 64)
    assert first.plan.checksum == again.plan.checksum
    assert first.describe() == again.describe()
    assert len(list((tmp_path / "cache" / "plans").iterdir())) == 1
    other = PackedTokenDataset(cache, 32, plans=tmp_path / "elsewhere")
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1
    assert other.describe() != first.describe()
    assert first.describe()["checksum"] == first.plan.checksum


def test_orders_are_refused_where_documents_are_needed(cache, dataset):
    plain = TokenSeqDataset(cache, 64)
    mixture = MixtureDataset({"a": plain, "b": plain}, {"a": 1, "b": 1}, batch_size=4)
    for order in (plain.shuffle(seed=0), mixture, plain.repeat(), dataset):
        with pytest.raises(ConfigError, match="Pack the token cache of each source") as caught:
            PackedTokenDataset(order, 64)  # pyright: ignore[reportArgumentType]
        assert caught.value.field == "cache"


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=40).filter(any),
    capacity=st.integers(2, 40),
    algorithm=st.sampled_from(("bfd", "wfd", "ffd", "next_fit", "windowed")),
    unit=st.sampled_from((1, 2)),
    chunk=st.integers(1, 50),
)
def test_what_is_kept_is_whole_in_one_pack(lengths, capacity, algorithm, unit, chunk):
    lengths = lengths[: len(lengths) // unit * unit]
    together = np.array(lengths, np.int64).reshape(-1, unit)
    packable = (together > 0).all(axis=1)
    if not packable.any():
        return
    documents = [np.full(n, number + 1) for number, n in enumerate(lengths)]
    expected = {n + 1 for n in np.flatnonzero(np.repeat(packable, unit))}
    longest = int(together[packable].sum(axis=1).max())
    how = {"algorithm": algorithm, "long": "keep", "unit": unit}
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        cache = write_cache(root, [documents], layout=CacheLayout("uint8", chunk, 3))
        rows = max(longest, capacity)
        dataset = PackedTokenDataset(cache, rows, capacity=capacity, **how)
        batch = dataset.read(np.arange(len(dataset)))
        assert dataset.seq_len == batch.tokens.shape[1] == rows
        number = batch.tokens[batch.segment_ids >= 0]
        assert set(number) == expected
        assert number.size == sum(lengths[n - 1] for n in expected)
        packs = [[int(segment[0]) for segment in row] for row in segments_by_row(dataset)]
        assert sorted(number for pack in packs for number in pack) == sorted(expected)
        for pack in packs:
            filled = sum(lengths[number - 1] for number in pack)
            assert filled <= capacity or len(pack) == unit
        assert dataset.padding_tokens == batch.tokens.size - number.size
        assert 0 < dataset.plan.fill <= 1
        if longest > capacity:
            with pytest.raises(ConfigError, match="longer than a row"):
                PackedTokenDataset(cache, longest - 1, capacity=capacity, **how)


def segments_by_row(dataset: PackedTokenDataset) -> list[list[np.ndarray]]:
    """The segments of each row, without padding."""
    batch = dataset.read(np.arange(len(dataset)))
    return [
        np.split(row[: sizes.sum()], np.cumsum(sizes[sizes > 0])[:-1])
        for row, sizes in zip(batch.tokens, np.asarray(batch.segment_lengths), strict=True)
    ]


def test_rows_cannot_be_longer_than_rows(cache):
    with pytest.raises(ConfigError, match="is longer than a row of 16"):
        PackedTokenDataset(cache, 16, long="keep")
    with pytest.raises(ConfigError, match="capacity = 65: is more than a row of 64"):
        PackedTokenDataset(cache, 64, capacity=65)
    with pytest.raises(ConfigError, match=r"lengths\[\d+\] = \d+: is longer than a pack of 16"):
        PackedTokenDataset(cache, 16, long="error")
    with pytest.raises(ConfigError, match="at least 2"):
        PackedTokenDataset(cache, 1)
    for long in ("drop", "truncate"):
        dataset = PackedTokenDataset(cache, 16, long=long)
        assert dataset.plan.counts.dropped_tokens + dataset.plan.counts.truncated_tokens > 0


def test_rows_of_one_document_each_through_a_loader(tmp_path):
    documents = [
        np.full(n, n) for n in (5, 8, 7, 6, 5, 8, 7, 8)
    ]  # no two fit into a row: each row is one piece
    dataset = PackedTokenDataset(write_cache(tmp_path, [documents]), 8)
    assert len(dataset) == 8
    with DataLoader(dataset, 8) as loader:
        batch = loader.batch_at(0)
    wanted = dataset.read(np.arange(8))
    assert np.array_equal(batch.tokens, wanted.tokens)
    assert np.array_equal(batch.token_weights, wanted.token_weights)
    assert wanted.tokens[0].tolist() == [5] * 5 + [0] * 3
