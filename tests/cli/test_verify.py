"""``headrace cache verify``: says what is damaged and what rebuilds it, by its exit status too."""

import json
import re
import shlex
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace import load_config
from headrace.data import PackedTokenDataset
from headrace.store.ledger import read_ledger, write_ledger
from headrace.testing import web_server


def build(headrace, corpus, output):
    assert headrace("build", str(corpus), "--output", str(output), "--tokenizer", "bytes").code == 0
    return Path(output)


def test_sound(headrace, corpus, tmp_path):
    cache = build(headrace, corpus, tmp_path / "cache")
    for flags in ([], ["--deep"]):
        done = headrace("cache", "verify", str(cache), *flags)
        assert done.code == 0
        assert done.out.startswith(f"sound {cache}: ")
    assert "every chunk read" in done.out
    report = json.loads(headrace("cache", "verify", str(cache), "--json").out)
    assert (report["damages"], report["finished"], report["deep"]) == ([], True, False)


def test_damage_is_named_with_what_rebuilds_it(headrace, corpus, tmp_path):
    cache = build(headrace, corpus, tmp_path / "cache")
    shard = cache / "parts" / "00000" / "input_ids" / "data" / "c" / "0"
    content = shard.read_bytes()
    shard.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert headrace("cache", "verify", str(cache)).code == 0  # sizes are right
    done = headrace("cache", "verify", str(cache), "--deep")
    assert done.code == 1
    assert f"part 00000 {shard}: chunk 0 cannot be read" in done.out
    assert "(chunks 0)" in done.out
    assert f"rebuilt from {corpus}/0.jsonl" in done.out
    assert "damaged" in done.out
    assert "--repair" in done.out
    done = headrace("cache", "verify", str(cache), "--deep", "--json")
    (damage,) = json.loads(done.out)["damages"]
    assert (done.code, damage["file"], damage["chunks"]) == (1, str(shard), [[0, 0]])
    shard.unlink()
    assert "is missing" in headrace("cache", "verify", str(cache)).out


def test_no_cache(headrace, tmp_path):
    done = headrace("cache", "verify", str(tmp_path / "nope"))
    assert (done.code, done.out) == (2, "")
    assert "is not a token cache" in done.err


def test_what_is_damaged_is_built_again_and_only_that(headrace, corpus, tmp_path):
    command = (
        "build",
        str(corpus),
        "--output",
        f"{tmp_path}/cache",
        "--tokenizer",
        "bytes",
        "--part-bytes",
        "1",
    )
    assert headrace(*command).code == 0
    cache = tmp_path / "cache"
    before = {str(p): p.read_bytes() for p in sorted(cache.rglob("*")) if p.is_file()}
    stamps = {p: p.stat().st_mtime_ns for p in cache.rglob("c/0")}
    (shard,) = (cache / "parts" / "00001" / "input_ids" / "data" / "c").iterdir()
    content = shard.read_bytes()
    shard.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    repair = shlex.split(
        json.loads(headrace("cache", "verify", str(cache), "--deep", "--json").out)["repair"]
    )
    done = headrace(*repair[1:])  # as it is printed
    assert (done.code, "1 damaged part" in done.err) == (0, True)
    assert {str(p): p.read_bytes() for p in sorted(cache.rglob("*")) if p.is_file()} == before
    rebuilt = {
        p.relative_to(cache).parts[1]
        for p, stamp in stamps.items()
        if p.stat().st_mtime_ns != stamp
    }
    assert rebuilt == {"00001"}
    assert headrace("cache", "verify", f"{tmp_path}/cache", "--deep").code == 0


def test_repair_mends_what_has_a_source_and_names_the_rest(headrace, corpus, tmp_path):
    command = (
        "build",
        str(corpus),
        "--output",
        f"{tmp_path}/cache",
        "--tokenizer",
        "bytes",
        "--part-bytes",
        "1",
    )
    assert headrace(*command).code == 0
    cache = tmp_path / "cache"
    before = {str(p): p.read_bytes() for p in sorted(cache.rglob("*")) if p.is_file()}
    assert "repaired" not in headrace("cache", "verify", str(cache), "--repair").out
    next(cache.glob("parts/00001/input_ids/data/c/*")).unlink()
    done = headrace("cache", "verify", str(cache), "--repair")
    assert (done.code, "repaired part 00001: rebuilt as it was" in done.out) == (0, True)
    assert {str(p): p.read_bytes() for p in sorted(cache.rglob("*")) if p.is_file()} == before
    next(cache.glob("parts/00001/input_ids/data/c/*")).unlink()
    (corpus / "1.jsonl").unlink()
    done = headrace("cache", "verify", str(cache), "--repair")
    assert done.code == 1
    assert f"left 00001: {corpus}/1.jsonl cannot be read" in done.out
    assert f"once that is fixed: headrace build {corpus}" in done.out
    report = json.loads(headrace("cache", "verify", str(cache), "--repair", "--json").out)
    assert report["repaired"]["left"] == {"00001": f"{corpus}/1.jsonl cannot be read"}
    assert headrace("cache", "verify", str(cache)).code == 1


def test_saved_plans_are_checked_and_dropped(headrace, corpus, tmp_path):
    cache = build(headrace, corpus, tmp_path / "cache")
    PackedTokenDataset(str(cache), 64)
    assert headrace("cache", "verify", str(cache)).code == 0
    (plan,) = (cache / "plans").iterdir()
    content = (plan / "plan.json").read_text()
    (plan / "plan.json").write_text(content.replace('"packs": ', '"packs": 1'))
    done = headrace("cache", "verify", str(cache))
    assert (done.code, f"{plan}/plan.json: is not as it was written" in done.out) == (1, True)
    done = headrace("cache", "verify", str(cache), "--repair")
    assert (done.code, f"repaired {plan}: deleted" in done.out, plan.exists()) == (0, True, False)


def test_saved_filters_are_checked_and_dropped(headrace, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.data.filter_files._WORTH_SAVING", 1)
    cache = build(headrace, corpus, tmp_path / "cache")
    (tmp_path / "ids.txt").write_text("0\n2\n")
    removing = f"components={{a: {{cache: {cache}, remove: {tmp_path}/ids.txt}}}}"
    counts = [load_config(overrides=["seq_len=8", removing]).accounts()["a"] for _ in range(2)]
    assert (counts[0], counts[0].to_dict()["removed_documents"]) == (counts[1], 2)
    assert headrace("cache", "verify", str(cache)).code == 0
    (saved,) = (cache / "filters").iterdir()
    (saved / "gaps-more.bin").write_bytes(b"short")
    done = headrace("cache", "verify", str(cache))
    assert (done.code, f"{saved}/gaps-more.bin: has 5 bytes instead of" in done.out) == (1, True)
    done = headrace("cache", "verify", str(cache), "--repair")
    assert (done.code, f"repaired {saved}: deleted" in done.out, saved.exists()) == (0, True, False)


def test_the_copy_of_the_tokenizer_is_checked_and_mended(headrace, corpus, tmp_path):
    model = {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"}
    parts = dict.fromkeys(
        ["truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"]
    )
    (tmp_path / "own.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], **parts, "model": model})
    )
    words = (
        "build",
        str(corpus),
        "--output",
        f"{tmp_path}/c",
        "--tokenizer",
        f"{tmp_path}/own.json",
        "--eos",
        "none",
    )
    assert headrace(*words).code == 0
    copy = tmp_path / "c" / "tokenizer.json"
    content = copy.read_text()
    for damaged in (content.replace('"a": 0', '"b": 0'), content[:-9], "", None):
        copy.unlink() if damaged is None else copy.write_text(damaged)
        done = headrace("cache", "verify", str(tmp_path / "c"), "--json")
        found = json.loads(done.out)
        assert (done.code, [d["file"] for d in found["damages"]], found["damaged_parts"]) == (
            1,
            [str(copy)],
            [],
        )
        assert headrace(*shlex.split(found["repair"])[1:]).code == 0
        assert copy.read_text() == content
        assert headrace("cache", "verify", str(tmp_path / "c")).code == 0


@pytest.mark.parametrize("damage", ["gone", "other head", "damaged chunk"])
def test_what_mends_a_cache_behind_a_web_address_works_where_it_is_from(
    headrace, corpus, tmp_path, monkeypatch, damage
):
    monkeypatch.chdir(tmp_path)
    build(headrace, corpus, "cache")
    table = Path("cache/ledger.bin")
    if damage == "gone":
        table.unlink()
    elif damage == "other head":
        table.write_bytes(table.read_bytes().replace(b"{", b"[", 1))
    else:
        Path("cache/parts/00000/input_ids/data/c/0").unlink()
    with web_server(tmp_path) as url:
        shown = ["cache", "verify" if damage == "damaged chunk" else "inspect"]
        done = headrace(*shown, f"{url}/cache")
        assert done.code in (1, 2)
        (command,) = re.findall(r"headrace (.*--repair) \(where cache is", done.out + done.err)
        assert headrace(*shlex.split(command)).code == 0
        assert headrace("cache", "verify", f"{url}/cache", "--deep").code == 0


def test_an_unfinished_cache_behind_a_web_address_is_finished_where_it_is_from(
    headrace, corpus, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    build(headrace, corpus, "cache")
    ledger = json.loads(Path("cache/ledger.json").read_text())
    with web_server(tmp_path) as url:
        write_ledger("cache", replace(read_ledger("cache"), finished=False, parts=[]))
        done = headrace("cache", "inspect", f"{url}/cache")
        (command,) = re.findall(r"finish it: headrace (.*) \(where cache is", done.out)
        assert headrace(*shlex.split(command)).code == 0
    assert json.loads(Path("cache/ledger.json").read_text())["parts"] == ledger["parts"]
