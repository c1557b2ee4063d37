"""Every kind of file, damaged in every way: a loader gives what was written or an error, and verify
names the file.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from headrace import HeadraceError
from headrace.cli.application import application
from headrace.store import CacheLayout, open_cache, verify
from headrace.store.layout import LeafSpec
from headrace.store.ledger import (
    Ledger,
    canonical_tokenizer,
    fingerprint_of,
    tokenizer_content,
    write_ledger,
)
from headrace.store.ragged import PartWriter

LEAVES = [LeafSpec("mask", "uint8"), LeafSpec("id", "int32", "fixed")]
TOKENIZER = json.dumps(
    {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": []}, indent=1
).encode()
KINDS = {
    "ledger": "ledger.json",
    "table": "ledger.bin",
    "tokenizer": "tokenizer.json",
    "record": "parts/*/part.json",
    "description": "parts/*/*/*/zarr.json",
    "shard": "parts/*/*/*/c/*",
    "part": "parts/*",
}
DAMAGES = ["flip", "truncation", "deletion", "swap", "doubling", "foreign"]


def write(root: Path, compression: str, seed: int) -> Path:
    """Three parts of the same lengths, so that files of one fit into another's place."""
    layout = CacheLayout("uint8", 32, 2, compression)
    lengths = np.random.default_rng(0).integers(0, 40, 12)
    records = []
    for k in range(3):
        pick = np.random.default_rng((seed, k))
        writer = PartWriter(str(root), f"{k:05d}", layout, LEAVES)
        tokens = pick.integers(0, 250, int(lengths.sum()))
        values = {
            "mask": (pick.integers(0, 2, tokens.size), lengths),
            "id": (pick.integers(0, 99, 12), None),
        }
        writer.append(tokens, lengths, values)
        records.append(writer.close())
    name = fingerprint_of(canonical_tokenizer(tokenizer_content(TOKENIZER)), None, 1)
    tokenizer = {
        "vocab_size": 256,
        "fingerprint": name,
        "file": "tokenizer.json",
        "bos_id": None,
        "eos_id": 1,
    }
    sources = [{"path": f"{k}.txt", "part": f"{k:05d}"} for k in range(3)]
    ledger = Ledger(
        False, tokenizer, layout.to_dict(), sources, leaves=[s.to_dict() for s in LEAVES]
    )
    (root / "tokenizer.json").write_bytes(
        TOKENIZER.replace(b'"b": 1', b'"b": 1' if seed == 1 else b'"c": 1')
    )
    write_ledger(str(root), ledger.complete(records))
    return root


def content(root: Path) -> list[list[int]]:
    """All that a loader can read of a cache: by chunks from mapped files, and by any ranges."""
    cache = open_cache(root)
    arrays = [cache.tokens(0, cache.num_tokens), cache.lengths()]
    for name in ("input_ids", *cache.leaves):
        leaf = cache.leaf(name)
        arrays += [leaf.values(0, leaf.num_documents), leaf.lengths()]
    return [array.tolist() for array in arrays]


def replaced(target: Path, by: Path) -> None:
    """Puts a file, or a folder, into another's place."""
    if target.is_dir():
        shutil.rmtree(target)
        shutil.copytree(by, target)
    else:
        shutil.copyfile(by, target)


def damage(
    root: Path, foreign: Path, kind: str, how: str, pick: np.random.Generator
) -> Path | None:
    """Damages a file of a kind, and gives its path; None if that can not be done."""
    files = sorted(root.glob(KINDS[kind]))
    target = files[pick.integers(len(files))]
    same = [
        f
        for f in files
        if f != target and (f.is_dir() or f.stat().st_size == target.stat().st_size)
    ]
    others = [f for f in same if f.is_dir() or f.read_bytes() != target.read_bytes()]
    if how == "deletion":
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    elif how == "foreign":
        other = foreign / target.relative_to(root)
        if target.is_file() and other.read_bytes() == target.read_bytes():
            return None  # offsets of documents of the same lengths
        replaced(target, other)
    elif how in ("swap", "doubling"):
        if not others:
            return None
        other = others[pick.integers(len(others))]
        kept = root.parent / "kept"
        shutil.copytree(target, kept) if target.is_dir() else shutil.copyfile(target, kept)
        replaced(target, other)
        if how == "swap":
            replaced(other, kept)
        shutil.rmtree(kept) if kept.is_dir() else kept.unlink()
    elif target.is_dir():
        return None
    else:
        raw = bytearray(target.read_bytes())
        at = int(pick.integers(len(raw)))
        if how == "flip":
            raw[at] ^= 1 << int(pick.integers(8))
        target.write_bytes(raw if how == "flip" else raw[:at])
    return target


def named(report, target: Path) -> bool:
    """Whether a report names a file, its array, or a file of a folder."""
    return any(
        d.file.startswith(str(target)) or (d.array and str(target).startswith(d.array))
        for d in report.damages
    )


def found(root: Path, target: Path, *, deep: bool) -> bool:
    try:
        return named(verify(str(root), deep=deep), target)
    except HeadraceError as error:
        return target.name in f"{error}" or "ledger" in f"{error}"


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """Of each compression: a sound cache, what can be read of it, and another one of the same
    sizes.
    """
    made = {}
    for compression in ("none", "zstd"):
        folder = tmp_path_factory.mktemp(compression)
        sound, foreign = (
            write(folder / name, compression, seed) for seed, name in ((1, "sound"), (2, "foreign"))
        )
        assert verify(str(sound), deep=True).damages == []
        made[compression] = sound, content(sound), foreign
    return made


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tries", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_corruption(caches, tmp_path, kind, how, tries):
    for seed in range(tries):
        compression = ("none", "zstd")[seed % 2]
        sound, right, foreign = caches[compression]
        root = tmp_path / str(seed)
        shutil.copytree(sound, root)
        target = damage(
            root, foreign, kind, how, np.random.default_rng((seed, *map(ord, kind + how)))
        )
        if target is None:
            continue
        where = (compression, seed, str(target.relative_to(root)))
        try:
            read = content(root)
        except HeadraceError:
            read = None
        assert read in (None, right), where
        if (kind, how) != (
            "ledger",
            "foreign",
        ):  # which is sound itself: the other files are what is wrong
            assert found(root, target, deep=True), where
        if (kind, how) not in {("shard", "flip"), ("ledger", "foreign")}:
            assert found(root, target, deep=False), where


@pytest.mark.parametrize("how", ["flip", "truncation", "foreign"])
@pytest.mark.parametrize("tries", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_a_damaged_table_is_refused_with_a_cure_that_works(caches, tmp_path, how, tries):
    sound, right, foreign = caches["none"]
    for seed in range(tries):
        root = tmp_path / str(seed)
        shutil.copytree(sound, root)
        table = damage(root, foreign, "table", how, np.random.default_rng(seed))
        problem = refusal(root, right)
        assert not problem or (
            str(table) in f"{problem}"
            and f"headrace cache verify {root} --repair" in (problem.cure or "")
        )
        assert main_status("cache", "verify", str(root)) == 1
        assert main_status("cache", "verify", str(root), "--repair") == 0
        assert main_status("cache", "verify", str(root)) == 0
        assert content(root) == right


def refusal(root: Path, right: list[list[int]]) -> HeadraceError | None:
    """The error of reading a cache; None if all is right: what nobody asked for is
    not looked at.
    """
    try:
        assert content(root) == right
    except HeadraceError as error:
        return error
    return None


def main_status(*arguments):
    return CliRunner().invoke(application(), arguments).exit_code


def test_a_foreign_ledger_is_refused_by_its_table(tmp_path):
    root, foreign = (write(tmp_path / str(seed), "none", seed) for seed in (1, 2))
    shutil.copyfile(foreign / "ledger.json", root / "ledger.json")
    with pytest.raises(HeadraceError, match=r"is of another ledger\.json"):
        content(root)
    assert main_status("cache", "verify", str(root)) == 1


def test_foreign_ledgers_are_refused_by_the_arrays(tmp_path):
    root, foreign = (write(tmp_path / str(seed), "none", seed) for seed in (1, 2))
    for name in ("ledger.json", "ledger.bin"):
        shutil.copyfile(foreign / name, root / name)
    with pytest.raises(HeadraceError, match="is of another part, or of another cache"):
        content(root)
    assert {d.part for d in verify(str(root)).damages} == {"00000", "00001", "00002"}


def without_owners(root: Path) -> Path:
    """The cache as it was written before arrays said whose they are."""
    for file in root.rglob("zarr.json"):
        metadata = json.loads(file.read_bytes())
        del metadata["attributes"]
        file.write_text(json.dumps(metadata))
    return root


def test_older_caches_are_read_as_before(tmp_path):
    root = write(tmp_path / "a", "none", 1)
    right = content(root)
    assert verify(str(root)).unchecked == ()
    assert content(without_owners(root)) == right
    report = verify(str(root), deep=True)
    assert report.damages == []
    assert report.unchecked == (
        "15 arrays do not name their chunks: only --deep finds sound files in another's place",
    )
    replaced(
        root / "parts/00001/input_ids",
        without_owners(write(tmp_path / "b", "none", 2)) / "parts/00001/input_ids",
    )
    assert (
        verify(str(root)).damages == []
    )  # the checks that they allow: sizes, and the digests of a deep check
    assert [d.part for d in verify(str(root), deep=True).damages] == ["00001"]


def test_chunks_and_their_documents_are_named(tmp_path):
    root = write(tmp_path / "a", "none", 1)
    cache = open_cache(root)
    file = root / "parts/00001/input_ids/data/c/1"
    raw = bytearray(file.read_bytes())
    raw[3] ^= 1  # token 3 of chunk 2 of the part
    file.write_bytes(raw)
    (found_damage,) = verify(str(root), deep=True).damages
    assert (found_damage.file, found_damage.chunks) == (str(file), [[2, 2]])
    ends = np.cumsum(cache.lengths(12, 24))
    touched = 12 + np.flatnonzero((ends > 64) & (np.concatenate([[0], ends[:-1]]) < 96))
    ((first, last),) = found_damage.documents
    assert set(touched) - {d for d in touched if cache.lengths(d, d + 1)[0] == 0} <= set(
        range(first, last + 1)
    )
    assert (first, last) == (touched[0], touched[-1])
