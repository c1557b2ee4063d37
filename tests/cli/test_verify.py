"""``headrace verify``: says what is damaged and what rebuilds it, by its exit status too."""

import json
from pathlib import Path


def build(headrace, corpus, output):
    assert headrace("build", str(corpus), "--output", str(output), "--tokenizer", "bytes").code == 0
    return Path(output)


def test_sound(headrace, corpus, tmp_path):
    cache = build(headrace, corpus, tmp_path / "cache")
    for flags in ([], ["--deep"]):
        done = headrace("verify", str(cache), *flags)
        assert done.code == 0
        assert done.out.startswith(f"sound {cache}: ")
    assert "every chunk read" in done.out
    report = json.loads(headrace("verify", str(cache), "--json").out)
    assert (report["damages"], report["finished"], report["deep"]) == ([], True, False)


def test_damage_is_named_with_what_rebuilds_it(headrace, corpus, tmp_path):
    cache = build(headrace, corpus, tmp_path / "cache")
    shard = cache / "parts" / "00000" / "input_ids" / "data" / "c" / "0"
    content = shard.read_bytes()
    shard.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert headrace("verify", str(cache)).code == 0  # sizes are right
    done = headrace("verify", str(cache), "--deep")
    assert done.code == 1
    assert f"part 00000 {shard}: chunk 0 cannot be read" in done.out
    assert "(chunks 0)" in done.out
    assert f"rebuilt from {corpus}/0.jsonl" in done.out
    assert "damaged" in done.out
    assert "--repair" in done.out
    done = headrace("verify", str(cache), "--deep", "--json")
    (damage,) = json.loads(done.out)["damages"]
    assert (done.code, damage["file"], damage["chunks"]) == (1, str(shard), [[0, 0]])
    shard.unlink()
    assert "is missing" in headrace("verify", str(cache)).out


def test_no_cache(headrace, tmp_path):
    done = headrace("verify", str(tmp_path / "nope"))
    assert (done.code, done.out) == (2, "")
    assert "is not a token cache" in done.err


def test_what_is_damaged_is_built_again_and_only_that(headrace, corpus, tmp_path):
    command = ("build", str(corpus), "--output", f"{tmp_path}/cache", "--tokenizer", "bytes", "--part-bytes", "1")
    assert headrace(*command).code == 0
    cache = tmp_path / "cache"
    before = {str(p): p.read_bytes() for p in sorted(cache.rglob("*")) if p.is_file()}
    stamps = {p: p.stat().st_mtime_ns for p in cache.rglob("c/0")}
    (shard,) = (cache / "parts" / "00001" / "input_ids" / "data" / "c").iterdir()
    content = shard.read_bytes()
    shard.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    done = headrace(*command, "--repair")
    assert (done.code, "1 damaged part" in done.err) == (0, True)
    assert {str(p): p.read_bytes() for p in sorted(cache.rglob("*")) if p.is_file()} == before
    rebuilt = {p.relative_to(cache).parts[1] for p, stamp in stamps.items() if p.stat().st_mtime_ns != stamp}
    assert rebuilt == {"00001"}
    assert headrace("verify", f"{tmp_path}/cache", "--deep").code == 0
