"""Stores that are written in packs: rows of whole documents, each behind the other, without a plan;
numbers and provenance are those of whole documents.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.ingest.test_reshuffle_split import SCRATCH, document, write
from typer.testing import CliRunner

from headrace import LmDataConfig, TokenSeqDataset, load_config
from headrace.cli.application import application
from headrace.data import MixtureDataset, PackedTokenDataset
from headrace.data.dataset import rows_of_step
from headrace.data.documents import DocumentFilter
from headrace.data.packed_store import PackedStoreDataset
from headrace.data.provenance import read_spans, spans_of_rows
from headrace.errors import CacheError, ConfigError, PlanMismatchError
from headrace.ingest import (
    ReshuffleConfig,
    SourceConfig,
    TokenizerConfig,
    append_cache,
    build_cache,
    reshuffle,
    shuffle_parts,
    shuffle_plan,
)
from headrace.ingest.shuffle_plan import Grouping
from headrace.order.braid import BraidShuffle
from headrace.order.intervals import Intervals
from headrace.store import TokenCache, open_cache, verify
from headrace.store.snapshots import add_appended, remove_documents

ROW = 16
HOW = ReshuffleConfig(3, part_bytes=500, pack=ROW)


@settings(max_examples=8, phases=[Phase.explicit, Phase.generate])
@given(
    parts=st.lists(st.lists(st.integers(0, 40), max_size=20), min_size=1, max_size=3).filter(
        lambda parts: any(map(any, parts))
    ),
    seed=st.integers(0, 2**64 - 1),
    row=st.integers(2, 40),
    part_bytes=st.integers(200, 5_000),
)
def test_rows_hold_whole_documents_from_chunk_to_chunk(
    parts: list[list[int]], seed: int, row: int, part_bytes: int
):
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        cache = write(f"{folder}/cache", parts, mask="marks")
        how = ReshuffleConfig(seed, part_bytes=part_bytes, pack=row)
        reshuffle(cache, f"{folder}/packed", how, progress=False)
        copy = open_cache(f"{folder}/packed")
        assert (copy.num_tokens - copy.padding_tokens, copy.num_originals) == (
            cache.num_tokens,
            cache.num_documents,
        )
        assert copy.layout.chunk_elements % row == 0
        assert (copy.part_tokens[:-1] % copy.layout.chunk_elements == 0).all()
        for number in range(cache.num_documents):
            places = copy.stored_at([number])
            assert [copy.original(int(place)).number for place in places] == [number] * places.size
            pieces = [document(copy, int(place)) for place in places]
            for leaf, values in enumerate(document(cache, number)):
                if leaf in (2, 4):  # number and url are those of each piece
                    assert all(piece[leaf] == values for piece in pieces)
                else:
                    assert [value for piece in pieces for value in piece[leaf]] == values
        rows = PackedStoreDataset(copy, row, loss_mask="none")
        packed = rows.sources[0].content(np.arange(len(rows)))
        assert packed.size.sum() == cache.num_tokens
        lengths = rows.sources[0].segment_lengths(np.arange(len(rows)))
        whole = [min(row, size - at) for size in cache.lengths() for at in range(0, size, row)]
        assert sorted(lengths[lengths > 0].tolist()) == sorted(whole)
        batch = rows.read(np.arange(len(rows)))
        assert batch.tokens[batch.segment_ids < 0].sum() == 0
        assert verify(copy.path, deep=True).damages == []


@pytest.fixture
def cache(tmp_path: Path) -> TokenCache:
    lengths = np.random.default_rng(0).integers(0, 30, 60).tolist()
    return write(str(tmp_path / "cache"), [lengths[:40], lengths[40:]], mask="marks")


@pytest.fixture
def packed(cache: TokenCache, tmp_path: Path) -> TokenCache:
    reshuffle(cache, str(tmp_path / "packed"), HOW, progress=False)
    return open_cache(tmp_path / "packed")


def test_runs_and_slices_do_not_matter_and_a_broken_shuffle_goes_on(
    cache: TokenCache,
    packed: TokenCache,
    tmp_path: Path,
    tree: Callable[[str | Path], dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(shuffle_plan, "BASE_BYTES", 0)
    monkeypatch.setattr(shuffle_plan, "_LEAST_DOCUMENTS", 1)
    write_part = shuffle_parts.write_part

    def fails(plan: shuffle_parts.ShufflePlan, task: shuffle_parts.ShuffleTask, *rest: Any) -> Any:
        if task.name == "00002" and not (tmp_path / "mended").exists():
            raise OSError("no more")
        return write_part(plan, task, *rest)

    monkeypatch.setattr(shuffle_parts, "write_part", fails)
    how = replace(HOW, memory=12_000)
    with pytest.raises(CacheError):
        reshuffle(cache, str(tmp_path / "again"), how, engine="inline", progress=False)
    (tmp_path / "mended").touch()
    report = reshuffle(cache, str(tmp_path / "again"), how, engine="inline", progress=False)
    assert (report.parts_reused > 0, report.parts_built > 0) == (True, True)
    assert report.runs_dealt == 0
    assert tree(tmp_path / "again") == tree(packed.path)
    with pytest.raises(PlanMismatchError, match="pack 16 there, 32 now"):
        reshuffle(cache, packed.path, replace(HOW, pack=32), progress=False)


def config(cache: TokenCache, *overrides: str) -> LmDataConfig:
    component = f"components={{a: {{cache: {cache.path}, packing: {{}}}}}}"
    return load_config(None, [component, f"seq_len={ROW}", "batch_size=8", *overrides])


def test_a_block_of_rows_is_a_chunk_and_there_is_no_plan(packed: TokenCache):
    run = config(packed)
    dataset = run.dataset()
    rows = PackedStoreDataset(packed, ROW)
    expected = sorted(rows.read(np.arange(len(rows))).tokens.tolist())
    read = dataset.read(np.arange(len(rows)))
    assert sorted(read.tokens.tolist()) == expected
    assert (
        read.label_mask.sum() == (rows.read(np.arange(len(rows))).segment_lengths - 1).clip(0).sum()
    )
    block = rows.default_io_block_size()
    aligned = rows.block_aligned(block)
    pieces = rows.sources[0].pieces(aligned.locate(np.arange(rows.full_blocks(block) * block)).row)
    chunk = (pieces.array << 32) + pieces.start // packed.layout.chunk_elements
    assert (chunk.reshape(-1, block) == chunk[::block, None]).all()
    assert np.unique(chunk).size == chunk.size // block
    assert not (Path(packed.path) / "plans").exists()
    with run.loader() as loader:
        batch = loader.batch_at(0)
        tokens = dataset.read(np.arange(8)).tokens.tolist()
        assert sorted(np.asarray(batch.tokens).tolist()) == sorted(tokens)
        stats = loader.stats()
    made = dataset.read(np.arange(stats.reads.examples_requested))
    assert stats.reads.content_tokens == made.segment_lengths.sum()
    account = run.accounts()["a"]
    assert account.train_tokens == account.tokens == packed.num_tokens - packed.padding_tokens
    assert (account.dropped_tokens, account.padding_tokens) == (0, packed.padding_tokens)


def test_documents_are_left_out_of_their_rows(cache: TokenCache, packed: TokenCache):
    numbers = [3, 17, 41]
    gone = sum(cache.lengths()[number] for number in numbers)
    rows, left = (
        PackedStoreDataset(packed, ROW, removed=DocumentFilter(some), loss_mask="none")
        for some in ([], numbers)
    )
    assert (left.removed_tokens, len(left)) == (gone, len(rows))
    whole, without = (one.read(np.arange(len(one))) for one in (rows, left))
    assert (whole.segment_lengths == without.segment_lengths).all()
    assert without.token_mask is not None
    assert (without.token_mask == 0).sum() == gone + packed.padding_tokens
    kept = without.token_mask == 1
    assert (whole.tokens[kept] == without.tokens[kept]).all()
    remove_documents(packed.path, packed.as_member, Intervals.of_numbers(np.array(numbers)))
    taken_down = config(packed).dataset().at_step(0)[0].read(np.arange(len(rows))).token_mask
    assert taken_down is not None
    assert (taken_down == 0).sum() == gone + packed.padding_tokens


def test_rows_say_which_whole_documents_they_hold(packed: TokenCache):
    run = config(packed)
    rows = rows_of_step(run.dataset(), run.dataset().batch_schedule, 1, "locality")
    spans = spans_of_rows(rows)
    numbers = packed.originals(spans.document)
    assert numbers.max() < packed.num_originals
    for place, number, tokens in zip(
        spans.document.tolist(), numbers.tolist(), read_spans(rows, spans), strict=True
    ):
        assert packed.original(place).number == number
        assert tokens.tolist() == packed.document(place).tolist()


def test_bad_values_are_refused(cache: TokenCache, packed: TokenCache, tmp_path: Path):
    out = str(tmp_path / "out")
    for how, message in (
        ({"pack": 1}, "pack = 1"),
        ({"pack": 16, "split": 8}, r"pack = 16: cuts documents at rows itself. Leave --split out"),
        ({"pack": 16, "groups": Grouping(np.zeros(60, np.uint8))}, r"Leave --by out"),
    ):
        with pytest.raises(ConfigError, match=message):
            ReshuffleConfig(0, **how)
    for original, how, message in (
        (cache, ReshuffleConfig(0, 2, pack=16), r"pack = 16: .*stay together.*--unit 1"),
        (packed, ReshuffleConfig(0), r"was written in packs.*Shuffle its original"),
        (write(out + "c", [[5]]), ReshuffleConfig(0, pack=4), r"conversations.*packing: \{\}"),
        (write(out + "e", [[0]], mask="m"), ReshuffleConfig(0, pack=4), "no packs"),
    ):
        with pytest.raises(ConfigError, match=message):
            reshuffle(original, out, how, progress=False)
    for wrong, message in (
        (["seq_len=32"], r"seq_len = 32: differs.*headrace cache reshuffle .* --pack 32 --seed 3"),
        (["components.a.packing=null"], r"components.a.packing: \{\}"),
        (["components.a.packing={algorithm: bfd}"], r"components.a.packing: \{\}"),
        (["validation={by: documents, one_in: 3}"], r"Hold out rows: \{one_in: 3\}"),
    ):
        with pytest.raises(ConfigError, match=message):
            config(packed, *wrong).accounts()
    for dataset in (TokenSeqDataset, PackedTokenDataset):
        with pytest.raises(ConfigError, match="PackedStoreDataset"):
            dataset(packed, ROW)
    with pytest.raises(ConfigError, match="was not written in packs"):
        PackedStoreDataset(cache, ROW)
    add_appended(packed.path, packed.as_member, 1, cache.as_member)


def test_nothing_is_appended_to_packs_and_the_cure_packs_anew(tmp_path: Path):
    for name in ("old", "new"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": "the {name} one"}}\n' * 9)
    plain = str(tmp_path / "cache")
    source = SourceConfig([str(tmp_path / "old.jsonl")])
    build_cache(source, TokenizerConfig("bytes"), plain, progress=False)
    packed = str(tmp_path / "packed")
    reshuffle(plain, packed, HOW, progress=False)
    added = [str(tmp_path / "new.jsonl")]
    with pytest.raises(ConfigError) as refused:
        append_cache(added, packed, progress=False)
    assert (refused.value.field, refused.value.value) == ("output", packed)
    append_cache(added, plain, progress=False)
    command = str(refused.value.cure).partition("headrace ")[2].split()
    assert CliRunner().invoke(application(), command).exit_code == 0
    assert open_cache(command[3]).num_originals == 18


def braid_of(cache: str, root: Path, *overrides: str) -> BraidShuffle:
    """The order of a component of packed rows."""
    component = f"components={{a: {{cache: {cache}, packing: {{plans: {root}}}}}}}"
    settings = [component, f"seq_len={ROW}", "batch_size=4", "max_hosts=1", *overrides]
    dataset = load_config(None, settings).dataset()
    assert isinstance(dataset, MixtureDataset)
    order = dataset.components[0].shuffle_order()
    assert isinstance(order, BraidShuffle)
    return order


def test_packs_of_a_plan_are_read_in_runs_where_the_store_is_shuffled(tmp_path: Path):
    lengths = np.random.default_rng(0).integers(1, ROW, 12_000).tolist()
    plain = write(str(tmp_path / "plain"), [lengths], mask="marks")
    reshuffle(plain, str(tmp_path / "mixed"), ReshuffleConfig(1), progress=False)
    mixed = str(tmp_path / "mixed")
    chunk = plain.layout.chunk_elements // ROW
    blocks = len(braid_of(mixed, tmp_path)) // chunk
    assert braid_of(mixed, tmp_path).io_block_size // chunk == min(blocks // 64, 32) > 1
    for cache, overrides, run in (
        (plain.path, (), 1),
        (mixed, ("max_hosts=null",), 1),  # as runs that began before there were runs of blocks
        (mixed, ("shuffle={kind: braid, strands: 8}",), 1),
        (mixed, ("shuffle={kind: braid, run_blocks: 1}",), 1),
        (mixed, ("components.a.packing.algorithm=bfd",), 1),  # whose packs have no neighbours
        (plain.path, ("shuffle={kind: braid, run_blocks: 16}",), 16),
    ):
        order = braid_of(cache, tmp_path, *overrides)
        assert (order.part, order.io_block_size) == (chunk, chunk * run)
    runs = "shuffle={kind: braid, run_blocks: 16}"
    with pytest.raises(ConfigError, match=r"shuffle.run_blocks = 16: needs rows of one length"):
        braid_of(mixed, tmp_path, runs, "seq_len={0: 16, 10: 32}")
    with pytest.raises(ConfigError, match=r"shuffle.run_blocks = 0"):
        braid_of(mixed, tmp_path, "shuffle={kind: braid, run_blocks: 0}")
