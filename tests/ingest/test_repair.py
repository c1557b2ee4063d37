"""A repair gives back the cache that was built, to the bit, or leaves the damage and says why."""

import json
import os
import shutil
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from headrace.errors import CacheError
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache, schedule
from headrace.ingest import repair as repairing
from headrace.ingest.repair import repair
from headrace.store import verify
from headrace.store.ledger import Ledger, write_ledger
from headrace.store.verify import Damage

KINDS = {
    "tokenizer": "tokenizer.json",
    "record": "parts/*/part.json",
    "description": "parts/*/*/*/zarr.json",
    "shard": "parts/*/*/*/c/*",
    "part": "parts/*",
}
DAMAGES = ["flip", "truncation", "deletion", "exchange"]


def content(root: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with sources, a tokenizer, and of each compression a cache of four parts with a
    leaf.
    """
    folder = tmp_path_factory.mktemp("built")
    for part in range(4):
        pick = np.random.default_rng(part)
        lines = [
            json.dumps({"text": " ".join("ab"[k] for k in pick.integers(0, 2, 30)), "n": k})
            for k in range(6)
        ]
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<unk>": 2}, "unk_token": "<unk>"}
    parts = dict.fromkeys(["truncation", "padding", "normalizer", "post_processor", "decoder"])
    parts["pre_tokenizer"] = {"type": "Whitespace"}
    (folder / "own.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], **parts, "model": model})
    )
    for compression in ("none", "zstd"):
        options = {
            "chunk_tokens": 32,
            "shard_chunks": 2,
            "compression": compression,
            "progress": False,
        }
        source = SourceConfig([str(folder / f"{part}.jsonl") for part in range(4)])
        tokenizer = TokenizerConfig(str(folder / "own.json"), eos="none")
        build_cache(
            source, tokenizer, str(folder / compression), part_bytes=1, engine="inline", **options
        )
    return folder


def damage(root: Path, kind: str, how: str, pick: np.random.Generator) -> bool:
    """Damages a file, or a part, of a kind; whether that can be done."""
    found = sorted(root.glob(KINDS[kind]))
    target = found[pick.integers(len(found))]
    if how == "deletion":
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    elif how == "exchange":
        others = [
            f
            for f in found
            if f != target and (f.is_dir() or f.read_bytes() != target.read_bytes())
        ]
        if not others:
            return False
        other = others[pick.integers(len(others))]
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        shutil.copytree(other, target) if other.is_dir() else shutil.copyfile(other, target)
    elif target.is_dir():
        return False
    else:
        raw = bytearray(target.read_bytes())
        at = int(pick.integers(len(raw)))
        raw[at] ^= 1 << int(pick.integers(8))
        target.write_bytes(raw if how == "flip" else raw[:at])
    return True


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tries", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_every_damage_is_mended_to_the_bit(built, tmp_path, kind, how, tries):
    for seed in range(tries):
        sound = built / ("none", "zstd")[seed % 2]
        root = tmp_path / str(seed)
        shutil.copytree(sound, root)
        if not damage(root, kind, how, np.random.default_rng((seed, *map(ord, kind + how)))):
            continue
        found = verify(str(root), deep=True).damages
        if content(root) == content(sound) or ((kind, how) == ("tokenizer", "flip") and not found):
            continue  # a space of the tokenizer's file: the same tokenizer
        assert found
        done = repair(str(root), found)
        assert done.left == {}, (seed, kind, how)
        assert content(root) == content(sound), (seed, kind, how)


def test_what_has_no_source_is_left_and_the_rest_is_mended(built, tmp_path):
    sources = shutil.copytree(built, tmp_path / "sources")
    root = tmp_path / "cache"
    options = {"chunk_tokens": 32, "progress": False}
    paths = [str(sources / f"{part}.jsonl") for part in range(4)]
    build_cache(
        SourceConfig(paths),
        TokenizerConfig("bytes"),
        str(root),
        part_bytes=1,
        engine="inline",
        **options,
    )
    before = content(root)
    for part in range(4):
        shutil.rmtree(root / f"parts/0000{part}/input_ids")
    (sources / "0.jsonl").unlink()
    (sources / "1.jsonl").touch()
    (sources / "2.jsonl").write_text('{"text": "another"}\n')
    damaged = content(root)
    done = repair(str(root), verify(str(root), deep=True).damages)
    assert done.rebuilt == ["00001", "00003"]
    assert done.left == {
        "00000": f"{paths[0]} cannot be read",
        "00002": f"{paths[2]} changed after the cache was built",
    }
    mended = {name for name in before if name.split("/")[1:2] in (["00001"], ["00003"])}
    assert content(root) == {
        name: before[name] for name in before if name in damaged or name in mended
    }
    assert verify(str(root), deep=True).damaged_parts == ["00000", "00002"]


def interrupted_after(steps, do):
    """A function that goes on for as many steps."""

    def step(*args, **kwargs):
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return do(*args, **kwargs)

    return step


def test_a_repair_that_is_interrupted_goes_on(built, tmp_path, monkeypatch):
    """Stopped at each step of a repair in turn: after it, the same call mends what is left."""
    sound = built / "none"
    stop = 0
    for stop in range(1, 40):
        root = tmp_path / str(stop)
        shutil.copytree(sound, root)
        for part in (1, 2):
            next(root.glob(f"parts/0000{part}/input_ids/data/c/*")).unlink()
        counted = partial(interrupted_after, iter(range(stop)))
        with monkeypatch.context() as patch:
            patch.setattr(repairing, "write_part_record", counted(repairing.write_part_record))
            for module in (repairing, schedule):
                patch.setattr(module, "remove_tree", counted(module.remove_tree))
            patch.setattr(os, "rename", counted(os.rename))
            try:
                repair(str(root), verify(str(root), deep=True).damages)
            except KeyboardInterrupt:
                pass
            else:
                break
        repair(str(root), verify(str(root), deep=True).damages)
        assert content(root) == content(sound), stop
    assert stop > 5


def test_what_was_not_built_here_is_left(tmp_path):
    with pytest.raises(CacheError, match="is not a finished cache"):
        repair(str(tmp_path), [Damage("00000", "is missing")])


def test_no_code_is_run_that_a_ledger_names(built, tmp_path, monkeypatch):
    (tmp_path / "of_a_stranger.py").write_text("raise SystemExit('run')\n")
    monkeypatch.syspath_prepend(tmp_path)
    source = str(built / "0.jsonl")
    root = str(tmp_path / "cache")
    build_cache(SourceConfig([source]), TokenizerConfig("bytes"), root, progress=False)
    ledger = json.loads(
        (tmp_path / "cache" / "ledger.json").read_text().replace(source, "of_a_stranger:f")
    )
    ledger["metadata"]["source"]["format"] = "python"
    write_ledger(root, msgspec.convert(ledger, Ledger))
    shutil.rmtree(tmp_path / "cache" / "parts" / "00000" / "input_ids")
    done = repair(root, verify(root, deep=True).damages)
    assert done.rebuilt == []
    assert "is a function" in done.left["00000"]
