"""A shuffled copy holds each document once, all leaves with it, in the order of the seed, however
it was made.
"""

import itertools
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CacheCorruptError, CacheError, ConfigError, PlanMismatchError
from headrace.ingest import ReshuffleConfig, reshuffle, shuffle_parts, shuffle_plan
from headrace.ingest.shuffle_plan import Grouping, cut_runs_and_slices, sizes_of
from headrace.order.document_shuffle import DocumentShuffle
from headrace.store import CacheLayout, TokenCache, files, open_cache, verify
from headrace.store.layout import LeafSpec
from headrace.store.lease import lease
from headrace.store.ledger import Ledger, read_ledger, write_ledger
from headrace.store.ragged import PartWriter
from headrace.testing import tiny_cache, write_cache
from headrace.testing.caches import random_documents
from headrace_levanter.export import write_levanter

Tree = Callable[[str | Path], dict[str, bytes]]
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
LEAVES = [
    LeafSpec("loss_mask", "uint8"),
    LeafSpec("number", "int64", "fixed"),
    LeafSpec("flag", "bool", "fixed"),
    LeafSpec("turns", "float32"),
]
SMALL = CacheLayout("uint8", 64, 2)


def write(
    root: str, parts: list[list[np.ndarray]], layout: CacheLayout = SMALL, **extra: Any
) -> TokenCache:
    """A cache with leaves of all kinds; ``number`` tells each document."""
    records = []
    number = 0
    for k, documents in enumerate(parts):
        writer = PartWriter(root, f"{k:05d}", layout, LEAVES)
        for document in documents:
            size = np.array([document.size])
            turns = np.arange(number % 4, dtype=np.float32)
            writer.append(
                document,
                size,
                {
                    "loss_mask": ((document % 2).astype(np.uint8), size),
                    "number": (np.array([number]), None),
                    "flag": (np.array([number % 3 == 0]), None),
                    "turns": (turns, np.array([turns.size])),
                },
            )
            number += 1
        records.append(
            writer.close(text_bytes=k + 1, ignored={"image": 1}, first_skipped="", **extra)
        )
    sources = [
        {"path": f"{k}.txt", "size": 1, "version": "v", "part": f"{k:05d}"}
        for k in range(len(parts))
    ]
    tokenizer = {"vocab_size": 256, "fingerprint": "t", "path": "t", "file": None}
    ledger = Ledger(
        False, tokenizer, layout.to_dict(), sources=sources, leaves=[s.to_dict() for s in LEAVES]
    )
    write_ledger(root, ledger.complete(records))
    return open_cache(root)


@contextmanager
def little_memory() -> Iterator[None]:
    """As if the interpreter and its libraries took nothing: memory may then be given in a few
    kilobytes.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle_plan, "BASE_BYTES", 0)
        patch.setattr(shuffle_plan, "_LEAST_DOCUMENTS", 1)
        yield


def with_memory(cache: TokenCache, how: ReshuffleConfig, documents: int) -> ReshuffleConfig:
    """With memory for so many bytes of documents."""
    sizes = sizes_of(cache, how)
    return replace(how, memory=sizes.writer_bytes + documents)


def document(cache: TokenCache, i: int) -> list[Any]:
    return [cache.leaf(name).document(i).tolist() for name in ("input_ids", *cache.leaves)]


def sorted_slowly(cache: TokenCache, seed: int, unit: int) -> list[list[Any]]:
    """The documents, each with its place, one by one; then sorted."""
    shuffle = DocumentShuffle(cache.num_documents, seed, unit)
    placed = [
        (int(shuffle.stored_at(np.array([i]))[0]), document(cache, i))
        for i in range(cache.num_documents)
    ]
    return [values for _, values in sorted(placed, key=lambda pair: pair[0])]


lengths = st.lists(st.lists(st.integers(0, 90), max_size=25), min_size=1, max_size=4).filter(
    lambda p: any(map(len, p))
)


@settings(max_examples=15)
@given(
    lengths=lengths,
    seed=st.integers(0, 2**64),
    unit=st.integers(1, 3),
    memory=st.integers(300, 60_000),
    part_bytes=st.integers(100, 5_000),
    compression=st.sampled_from(["none", "zstd"]),
)
def test_it_is_the_slow_sort_with_all_leaves(
    lengths: list[list[int]], seed: int, unit: int, memory: int, part_bytes: int, compression: Any
):
    rng = np.random.default_rng(seed)
    parts = [[rng.integers(0, 256, n) for n in part] for part in lengths]
    unit = min(unit, max(sum(map(len, lengths)) // 2, 1))
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root, little_memory():
        cache = write(f"{root}/cache", parts, CacheLayout("uint8", 32, 2, compression))
        how = with_memory(cache, ReshuffleConfig(seed, unit, None, part_bytes), memory)
        report = reshuffle(cache, f"{root}/copy", how, engine="inline", progress=False)
        copy = open_cache(f"{root}/copy")
        assert [document(copy, i) for i in range(copy.num_documents)] == sorted_slowly(
            cache, seed, unit
        )
        assert sorted(copy.leaf("number").values(0, copy.num_documents).tolist()) == list(
            range(cache.num_documents)
        )
        assert verify(copy.path, deep=True).damages == []
        assert (report.documents, report.tokens) == (cache.num_documents, cache.num_tokens)
        assert report.parts_built == len(copy.parts) == sizes_of(cache, how).cost.parts
        assert sorted(p.name for p in Path(root, "copy").iterdir()) == [
            "ledger.bin",
            "ledger.json",
            "parts",
        ]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> TokenCache:
    parts = [random_documents(n, seed=n) for n in (70, 1, 130)]
    return write(str(tmp_path_factory.mktemp("reshuffle") / "cache"), parts)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory: hundreds of files are flushed to it."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        yield Path(root)


HOW = ReshuffleConfig(seed=5, part_bytes=3000)


def test_runs_and_slices_fit_into_memory_and_decide_nothing(
    cache: TokenCache, tmp_path: Path, tree: Tree
):
    whole = None
    with little_memory():
        for memory in (1_000, 3_000, 30_000, 1 << 30):
            how = with_memory(cache, HOW, memory)
            sizes = sizes_of(cache, how)
            runs, slices = cut_runs_and_slices(sizes, sizes.memory)
            assert set(sizes.edges.tolist()) <= set(slices)
            for a, b in itertools.pairwise(runs):
                assert b == a + 1 or cache.lengths(a, b).sum() < memory / 2
            root = tmp_path / str(memory)
            assert (
                reshuffle(cache, str(root), how, engine="inline", progress=False).runs_dealt
                == len(runs) - 1
            )
            assert (len(runs) > 8) == (memory < 10_000)
            whole = whole or tree(root)
            assert tree(root) == whole


def test_a_long_document_is_a_run_of_its_own(tmp_path: Path):
    documents = [np.full(n, n % 7) for n in (3, 5_000, 2, 9)]
    long = write(str(tmp_path / "cache"), [documents])
    with little_memory():
        how = with_memory(long, ReshuffleConfig(1), 1_000)
        runs, _ = cut_runs_and_slices(sizes_of(long, how), how.memory or 0)
        assert runs == [0, 1, 2, 4]
        reshuffle(long, str(tmp_path / "a"), how, engine="inline", progress=False)
        reshuffle(long, str(tmp_path / "b"), ReshuffleConfig(1), engine="inline", progress=False)
    a, b = (open_cache(tmp_path / name) for name in "ab")
    assert (
        [document(a, i) for i in range(4)]
        == [document(b, i) for i in range(4)]
        == sorted_slowly(long, 1, 1)
    )


def test_a_shuffled_copy_shuffled_again_is_what_the_original_gives(
    cache: TokenCache, tmp_path: Path, tree: Tree
):
    reshuffle(
        cache, str(tmp_path / "one"), ReshuffleConfig(1, unit=2, part_bytes=3000), progress=False
    )
    reshuffle(open_cache(tmp_path / "one"), str(tmp_path / "two"), HOW, progress=False)
    reshuffle(cache, str(tmp_path / "straight"), HOW, progress=False)
    two = tree(tmp_path / "two")
    straight = tree(tmp_path / "straight")
    for ledger in ("ledger.bin", "ledger.json"):  # which say what each was made of
        del two[ledger], straight[ledger]
    assert two == straight
    ledgers = [read_ledger(str(tmp_path / name)) for name in ("two", "straight")]
    assert {**ledgers[0].metadata["shuffled"], "cache": cache.path} == ledgers[1].metadata[
        "shuffled"
    ]
    reshuffle(str(tmp_path / "one"), str(tmp_path / "same"), ReshuffleConfig(9), progress=False)
    assert (
        read_ledger(str(tmp_path / "same")).metadata["shuffled"]["fingerprint"] == cache.fingerprint
    )


def test_the_ledger_tells_what_it_was(cache: TokenCache, tmp_path: Path):
    reshuffle(cache, str(tmp_path / "copy"), HOW, progress=False)
    ledger = read_ledger(str(tmp_path / "copy"))
    assert ledger is not None
    assert ledger.finished
    assert ledger.metadata["shuffled"] == {
        "seed": 5,
        "unit": 1,
        "fingerprint": cache.fingerprint,
        "parts": [[p.name, p.documents] for p in cache.ledger.parts],
        "sources": [*cache.ledger.sources],
        "part_bytes": 3000,
        "cache": cache.path,
    }
    assert "runs" not in ledger.metadata
    assert [s["part"] for s in ledger.sources] == [p.name for p in ledger.parts]
    assert sum(p.extra["text_bytes"] for p in ledger.parts) == 1 + 2 + 3
    assert {**ledger.parts[0].extra["ignored"], **ledger.parts[1].extra["ignored"]} == {"image": 3}


def test_pairs_stay_together(tmp_path: Path):
    pairs = write_pairs(str(tmp_path / "pairs"), 20)
    reshuffle(pairs, str(tmp_path / "copy"), ReshuffleConfig(3), progress=False)
    copy = open_cache(tmp_path / "copy")
    assert copy.leaf("chosen").values(0, 40).tolist() == [1, 0] * 20
    copy.check_unit(2)
    with pytest.raises(ConfigError, match=r"unit = 3: is not kept by .*units of 2.*--unit 3"):
        copy.check_unit(3)
    with pytest.raises(ConfigError, match="unit = 3: parts the chosen and the rejected"):
        reshuffle(pairs, str(tmp_path / "odd"), ReshuffleConfig(3, unit=3), progress=False)


def write_pairs(root: str, pairs: int) -> TokenCache:
    leaf = LeafSpec("chosen", "uint8", "fixed")
    writer = PartWriter(root, "00000", SMALL, [leaf])
    for k in range(2 * pairs):
        writer.append(
            np.full(5, k), np.array([5]), {"chosen": (np.array([1 - k % 2], np.uint8), None)}
        )
    tokenizer = {"vocab_size": 256, "fingerprint": "t", "path": "t", "file": None}
    ledger = Ledger(False, tokenizer, SMALL.to_dict(), leaves=[leaf.to_dict()])
    write_ledger(root, ledger.complete([writer.close()]))
    return open_cache(root)


@pytest.mark.parametrize("form", ["consolidated", "sharded"])
def test_caches_of_levanter(tmp_path: Path, form: Any):
    plain = write_cache(
        tmp_path / "plain", [random_documents(40, seed=1), random_documents(9, seed=2)]
    )
    write_levanter(plain, str(tmp_path / "levanter"), form=form)
    reshuffle(
        str(tmp_path / "levanter"), str(tmp_path / "copy"), ReshuffleConfig(2), progress=False
    )
    copy = open_cache(tmp_path / "copy")
    places = copy.stored_at(np.arange(49))
    assert [copy.document(int(p)).tolist() for p in places] == [
        plain.document(i).tolist() for i in range(49)
    ]
    assert verify(copy.path, deep=True).damages == []


@pytest.mark.parametrize("workers", [1, 3])
def test_worker_processes_write_the_same(
    cache: TokenCache, tmp_path: Path, tree: Tree, workers: int
):
    reshuffle(cache, str(tmp_path / "inline"), HOW, engine="inline", progress=False)
    with little_memory():
        how = with_memory(cache, HOW, 8_000)
        reshuffle(
            cache, str(tmp_path / "pool"), how, engine="pool", workers=workers, progress=False
        )
    assert tree(tmp_path / "pool") == tree(tmp_path / "inline")


class StoppedError(Exception):
    pass


IN_GROUPS = replace(HOW, groups=Grouping((np.arange(201) % 3).astype(np.uint8)))


@pytest.mark.parametrize("how", [HOW, IN_GROUPS])
def test_stopped_before_any_file_is_written_it_goes_on(
    cache: TokenCache, scratch: Path, tree: Tree, how: ReshuffleConfig
):
    """Also with other memory: the runs are dealt again, and parts that are there are kept."""
    reshuffle(cache, str(scratch / "whole"), how, engine="inline", progress=False)
    whole = tree(scratch / "whole")
    really = files.write_atomic
    stopped = 0
    for stop_at in [1, 2, 3, *range(5, 400, 13)]:
        root = str(scratch / f"at{stop_at}")
        calls = 0

        def dying(*given: Any, stop_at: int = stop_at, **named: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == stop_at:
                raise StoppedError
            really(*given, **named)

        with little_memory(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "write_atomic", dying)
            try:
                reshuffle(
                    cache, root, with_memory(cache, how, 4_000), engine="inline", progress=False
                )
            except StoppedError:
                stopped += 1
        built = {p.parent.name: p.stat().st_mtime_ns for p in Path(root).glob("parts/*/part.json")}
        with little_memory():
            other = with_memory(cache, how, 4_000 if stop_at % 2 else 9_000)
            again = reshuffle(cache, root, other, progress=False)
        assert tree(root) == whole, stop_at
        assert again.parts_reused == len(built)
        assert built == {k: Path(root, "parts", k, "part.json").stat().st_mtime_ns for k in built}
        if calls < stop_at:
            break
        shutil.rmtree(root)
    assert stopped > 4


def test_what_was_begun_otherwise_is_refused(cache: TokenCache, tmp_path: Path, tree: Tree):
    root = str(tmp_path / "copy")
    reshuffle(cache, root, HOW, progress=False)
    before = tree(root)
    assert reshuffle(cache, root, HOW, progress=False).parts_built == 0
    with pytest.raises(PlanMismatchError, match=r"seed 5 there, 6 now"):
        reshuffle(cache, root, ReshuffleConfig(6, part_bytes=3000), progress=False)
    with pytest.raises(PlanMismatchError, match=r"part_bytes 3000 there, 268435456 now"):
        reshuffle(cache, root, ReshuffleConfig(5), progress=False)
    with pytest.raises(PlanMismatchError, match="another cache was shuffled"):
        reshuffle(tiny_cache(), root, HOW, progress=False)
    assert tree(root) == before
    assert (
        reshuffle(
            cache, root, ReshuffleConfig(6, part_bytes=3000), restart=True, progress=False
        ).parts_reused
        == 0
    )
    with pytest.raises(CacheError, match="was not shuffled here"):
        reshuffle(root, cache.path, HOW, restart=True, progress=False)
    with pytest.raises(CacheError, match="holds another cache"):
        reshuffle(root, cache.path, HOW, progress=False)
    assert open_cache(cache.path).fingerprint == cache.fingerprint
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(CacheError, match=r"holds other things.*thesis"):
        reshuffle(cache, str(tmp_path / "other"), HOW, progress=False)
    with lease(str(tmp_path / "busy")), pytest.raises(CacheError, match="is being written"):
        reshuffle(cache, str(tmp_path / "busy"), HOW, progress=False)


@pytest.mark.parametrize("restart", [False, True])
def test_a_cache_is_not_deleted_for_its_own_copy(
    cache: TokenCache, tmp_path: Path, tree: Tree, restart: bool
):
    root, inner, link = (tmp_path / name for name in ("copy", "copy/unshuffled", "link"))
    reshuffle(cache, str(root), HOW, progress=False)
    reshuffle(cache, str(inner), HOW, progress=False)
    link.symlink_to(root)
    before = tree(root)
    for source, output in ((root, root), (root, link), (inner, root), (link, f"file://{root}/")):
        with pytest.raises(CacheError, match="holds the cache that is to be shuffled"):
            reshuffle(source, str(output), ReshuffleConfig(6), restart=restart, progress=False)
    assert tree(root) == before
    assert reshuffle(root, str(root) + "-2", HOW, restart=restart, progress=False).parts_built > 0


def test_bad_values_are_named(cache: TokenCache, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"memory = 1000: is too little.*Give at least \d+"):
        reshuffle(cache, str(tmp_path / "c"), ReshuffleConfig(0, memory=1000))
    with pytest.raises(ConfigError, match="memory = 0"):
        ReshuffleConfig(0, memory=0)
    with pytest.raises(ConfigError, match="unit = 0"):
        ReshuffleConfig(0, unit=0)
    with pytest.raises(ConfigError, match=r"unit = 1000: leaves nothing to shuffle"):
        reshuffle(cache, str(tmp_path / "c"), ReshuffleConfig(0, unit=1000))
    with pytest.raises(ConfigError, match="part_bytes = 0"):
        ReshuffleConfig(0, part_bytes=0)
    with pytest.raises(ConfigError, match="can be read from, not written to"):
        reshuffle(cache, "https://example.org/c", ReshuffleConfig(0))
    with pytest.raises(ConfigError, match="engine"):
        reshuffle(cache, str(tmp_path / "c"), ReshuffleConfig(0), engine="rai")  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "c").exists()


def test_the_least_memory_that_an_error_names_is_enough(cache: TokenCache):
    with pytest.raises(ConfigError) as error:
        sizes_of(cache, ReshuffleConfig(0, memory=1000))
    named = int(str(error.value).partition("Give at least ")[2].split()[0])
    assert sizes_of(cache, ReshuffleConfig(0, memory=named)).writer_bytes < named
    with pytest.raises(ConfigError):
        sizes_of(cache, ReshuffleConfig(0, memory=named - (1 << 20) - 1))


@pytest.mark.parametrize(
    "bad", [{"seed": "x"}, {"unit": 0}, {"parts": 3}, {"parts": [["a", -1]]}, {"sources": None}]
)
def test_a_ledger_that_does_not_say_how_is_refused(
    cache: TokenCache, tmp_path: Path, bad: dict[str, Any]
):
    reshuffle(cache, str(tmp_path / "c"), HOW, progress=False)
    ledger = read_ledger(str(tmp_path / "c"))
    assert ledger is not None
    ledger.metadata["shuffled"] |= bad
    write_ledger(str(tmp_path / "c"), ledger)
    with pytest.raises(CacheCorruptError, match="does not say how the cache was shuffled"):
        open_cache(tmp_path / "c").original(1)


def test_a_full_disk_is_told_before_anything_is_read(cache: TokenCache, tmp_path: Path):
    usage = shutil.disk_usage(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
        with pytest.raises(
            CacheError, match=r"needs about .* KiB while it is being made.*Free some space"
        ):
            reshuffle(cache, str(tmp_path / "c"), HOW, progress=False)
    reshuffle(cache, str(tmp_path / "c"), HOW, progress=False)


@pytest.mark.parametrize("limit", [9_000, 100_000], ids=["while dealing", "while ordering"])
def test_a_disk_that_is_full_on_the_way(tmp_path: Path, tree: Tree, limit: int):
    """The system lets no file grow beyond a limit: what is seen from within is what a full disk
    gives.
    """
    big = write(
        str(tmp_path / "cache"),
        [random_documents(100, seed=k) for k in range(2)],
        CacheLayout("uint8", 512, 64),
    )
    program = f"""
        import resource, signal
        from headrace.errors import HeadraceError
        from headrace.ingest.reshuffle import reshuffle
        from headrace.ingest.shuffle_plan import ReshuffleConfig
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        how = ReshuffleConfig(5)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
        try:
            reshuffle({big.path!r}, {str(tmp_path / "copy")!r}, how, engine="inline", progress=False)
        except HeadraceError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert "cannot be written" in done.stdout
    assert "free space, then run the same command again" in done.stdout
    assert done.stdout.count("\n") == 1
    assert (tmp_path / "copy/runs/parts/00000/part.json").exists() == (limit == 100_000)
    reshuffle(big, str(tmp_path / "copy"), ReshuffleConfig(5), progress=False)
    reshuffle(big, str(tmp_path / "fresh"), ReshuffleConfig(5), progress=False)
    assert tree(tmp_path / "copy") == tree(tmp_path / "fresh")


def test_a_damaged_run_is_never_taken_for_documents(cache: TokenCache, tmp_path: Path, tree: Tree):
    root = tmp_path / "c"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle_parts, "write_part", lambda *_: (_ for _ in ()).throw(StoppedError()))
        with pytest.raises(StoppedError):
            reshuffle(cache, str(root), HOW, engine="inline", progress=False)
    (file,) = root.glob("runs/parts/*/0.bin")
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(bytes(raw))
    with pytest.raises(
        CacheCorruptError, match=r"0\.bin': is not what was written.*Delete .*runs and run"
    ):
        reshuffle(cache, str(root), HOW, engine="inline", progress=False)
    shutil.rmtree(root / "runs")
    reshuffle(cache, str(root), HOW, engine="inline", progress=False)
    reshuffle(cache, str(tmp_path / "whole"), HOW, progress=False)
    assert tree(root) == tree(tmp_path / "whole")
