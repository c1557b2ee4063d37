"""One part out of many: the same documents, the same bytes as one build, and an interrupted copy
goes on.
"""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CacheError, ConfigError, ReadError
from headrace.ingest import ReshuffleConfig, reshuffle
from headrace.store import CacheLayout, consolidate, open_cache, verify
from headrace.store.layout import LeafSpec
from headrace.store.lease import lease
from headrace.store.ledger import Ledger, write_ledger
from headrace.store.ragged import PartWriter
from headrace.testing import write_cache
from headrace.testing.caches import grow, random_documents
from headrace_levanter.export import write_levanter

SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
LEAVES = [LeafSpec("turns", "uint16"), LeafSpec("score", "float64", "fixed")]


def write(root, parts, layout):
    records = []
    for k, documents in enumerate(parts):
        writer = PartWriter(str(root), f"{k:05d}", layout, LEAVES)
        for document in documents:
            turns = np.arange(document.size % 4)
            given = {
                "turns": (turns, np.array([turns.size])),
                "score": (np.array([document.sum() / 7]), None),
            }
            writer.append(document, np.array([document.size]), given)
        records.append(
            writer.close(
                text_bytes=k + 1,
                first_skipped=f"line {k}" if k else "",
                ignored={"a": 1, str(k): 2},
            )
        )
    ledger = Ledger(
        False, {"vocab_size": 256}, layout.to_dict(), leaves=[s.to_dict() for s in LEAVES]
    )
    write_ledger(str(root), ledger.complete(records))
    return open_cache(root)


def contents(root):
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in sorted(Path(root).rglob("*"))
        if p.is_file()
    }


def arrays(root):
    return {k: v for k, v in contents(Path(root, "parts")).items() if not k.endswith("part.json")}


layouts = st.builds(
    CacheLayout,
    dtype=st.sampled_from(["uint8", "uint32"]),
    chunk_elements=st.integers(1, 40),
    shard_chunks=st.integers(1, 4),
    compression=st.sampled_from(["none", "zstd"]),
)


@settings(max_examples=20)
@given(
    lengths=st.lists(st.lists(st.integers(0, 30), max_size=8), min_size=1, max_size=4),
    layout=layouts,
)
def test_it_is_the_part_that_one_build_would_have_written(lengths, layout):
    parts = [[np.arange(n) % 256 for n in part] for part in lengths]
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        many = write(f"{root}/many", parts, layout)
        one = write(f"{root}/one", [[d for part in parts for d in part]], layout)
        moved = []
        copy = consolidate(many, f"{root}/copy", advance=moved.append)
        assert arrays(f"{root}/copy") == arrays(f"{root}/one")
        assert copy.fingerprint == one.fingerprint
        assert verify(copy.path, deep=True).damages == []
        assert copy.lengths().tolist() == many.lengths().tolist()
        for name in ("input_ids", "turns", "score"):
            for i in range(copy.num_documents):
                assert np.array_equal(copy.leaf(name).document(i), many.leaf(name).document(i))
        assert sum(moved) == sum(many.leaf(n).num_elements for n in ("input_ids", "turns", "score"))


@pytest.fixture
def many(tmp_path):
    return write(
        tmp_path / "many",
        [random_documents(30, seed=k) for k in range(3)],
        CacheLayout("uint8", 64, 2),
    )


class KilledError(Exception):
    pass


def test_an_interrupted_copy_goes_on_and_is_the_same(many, tmp_path, monkeypatch):
    whole = consolidate(many, str(tmp_path / "whole"))
    from headrace.store import ragged

    really = ragged.written
    for stop_after in range(1, 26, 4):
        target = tmp_path / f"copy{stop_after}"
        calls = []

        def dying(future, url, *kept, calls=calls, stop_after=stop_after):
            calls.append(url)
            result = really(future, url, *kept)
            if len(calls) >= stop_after:
                raise KilledError
            return result

        with monkeypatch.context() as patch:
            patch.setattr(ragged, "written", dying)
            with pytest.raises(KilledError):
                consolidate(many, str(target))
        before = {k: v for k, v in contents(target).items() if "/c/" in k}
        stamps = {k: (target / k).stat().st_mtime_ns for k in before}
        consolidate(many, str(target))
        assert contents(target) == contents(whole.path)
        assert stamps == {k: (target / k).stat().st_mtime_ns for k in before}  # not written again
    assert consolidate(many, str(tmp_path / "whole")).fingerprint == whole.fingerprint


def test_counters_and_sources_are_kept(many, tmp_path):
    copy = consolidate(many, str(tmp_path / "copy"))
    assert copy.whole_ledger.parts[0].extra == {
        "text_bytes": 6,
        "first_skipped": "line 1",
        "ignored": {"a": 3, "0": 2, "1": 2, "2": 2},
    }
    assert copy.ledger.metadata["consolidated_from"] == {
        "fingerprint": many.fingerprint,
        "parts": 3,
    }
    assert copy.ledger.leaves == many.ledger.leaves
    assert copy.leaves == ["score", "turns"]


def test_another_layout_and_caches_of_levanter(many, tmp_path):
    write_levanter(many, str(tmp_path / "theirs"))
    theirs = open_cache(tmp_path / "theirs")
    copy = consolidate(theirs, str(tmp_path / "back"), layout=CacheLayout("uint8", 64, 2))
    assert np.array_equal(copy.tokens(0, copy.num_tokens), many.tokens(0, many.num_tokens))
    assert verify(copy.path, deep=True).damages == []
    plain = consolidate(theirs, str(tmp_path / "plain"))
    assert (plain.dtype, plain.layout.compression) == (np.dtype("int32"), "none")
    wide = write_cache(tmp_path / "wide", [[np.array([300])]], vocab_size=1000)
    with pytest.raises(CacheError, match="the value 300, which uint8 does not hold"):
        consolidate(wide, str(tmp_path / "narrow"), layout=CacheLayout("uint8"))


def test_nothing_else_is_touched(many, tmp_path):
    other = write_cache(tmp_path / "other", [random_documents(3)])
    with pytest.raises(CacheError, match="holds another cache"):
        consolidate(many, other.path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    with pytest.raises(CacheError, match=r"holds other things than a token cache \(thesis.txt\)"):
        consolidate(many, str(tmp_path / "full"))
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["thesis.txt"]
    with lease(str(tmp_path / "busy")), pytest.raises(CacheError, match="is being written by"):
        consolidate(many, str(tmp_path / "busy"))


def test_damage_is_not_copied(many, tmp_path):
    next(Path(many.path).rglob("input_ids/data/c/1")).unlink()
    with pytest.raises(ReadError):
        consolidate(open_cache(many.path), str(tmp_path / "copy"))
    with pytest.raises(CacheError):
        open_cache(tmp_path / "copy")


def test_a_shuffled_cache_that_was_appended_to_is_not_copied(tmp_path):
    # the copy would say that all its documents are in the shuffled order of the first ones
    cache = write_cache(tmp_path / "cache", [random_documents(20, seed=1)])
    reshuffle(cache, tmp_path / "shuffled", ReshuffleConfig(seed=3), progress=False)
    whole = consolidate(open_cache(tmp_path / "shuffled"), str(tmp_path / "copy"))
    assert whole.original(0).number == open_cache(tmp_path / "shuffled").original(0).number
    grown = grow(tmp_path / "shuffled", 5)
    for copying in (
        lambda: consolidate(grown, str(tmp_path / "new")),
        lambda: reshuffle(grown, tmp_path / "new", ReshuffleConfig(seed=4), progress=False),
    ):
        with pytest.raises(ConfigError, match="was appended to, and was shuffled") as refused:
            copying()
        assert (refused.value.field, refused.value.value) == ("cache", str(tmp_path / "shuffled"))
        assert not (tmp_path / "new").exists()
