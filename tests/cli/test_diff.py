"""``headrace cache diff``: two ledgers side by side; ``headrace run diff``: a run and its edited
config.
"""

import json

import pytest

from headrace import load_config, open_run
from headrace.cli.diff import differences
from headrace.store import open_cache
from headrace.testing import write_cache
from headrace.testing.caches import random_documents


def test_the_same(headrace, tmp_path):
    for name in "ab":
        write_cache(tmp_path / name, [random_documents(5)])
    done = headrace("cache", "diff", f"{tmp_path}/a", f"{tmp_path}/b")
    assert (done.code, done.out.split()[:2]) == (0, ["the", "same"])
    done = headrace("cache", "diff", f"{tmp_path}/a", f"{tmp_path}/b", "--json")
    facts = json.loads(done.out)
    assert (facts["same"], facts["same_content"], facts["differences"]) == (True, True, [])


def test_builds_that_differ(headrace, corpus, tmp_path):
    build = ("build", str(corpus), "--tokenizer", "bytes", "--output")
    assert headrace(*build, f"{tmp_path}/a").code == 0
    (corpus / "1.jsonl").write_text('{"text": "other"}\n')
    (corpus / "2.jsonl").unlink()
    (corpus / "9.jsonl").write_text('{"text": "new"}\n')
    assert headrace(*build, f"{tmp_path}/b", "--compression", "zstd", "--eos", "none").code == 0
    done = headrace("cache", "diff", f"{tmp_path}/a", f"{tmp_path}/b", "--json")
    found = {d["what"]: (d["a"], d["b"]) for d in json.loads(done.out)["differences"]}
    assert done.code == 1
    assert found["layout compression"] == ("none", "zstd")
    assert found["tokenizer eos"] == ("<eos>", None)
    assert found["documents"] == (15, 7)
    sources = {what: values for what, values in found.items() if what.startswith("source ")}
    assert {what.rsplit("/")[-1].split(".jsonl")[0] for what in sources} == {"1", "2", "9"}
    assert next(v for k, v in sources.items() if "9.jsonl" in k)[0] is None
    assert found["part 00000"][0].startswith("15 documents")
    done = headrace("cache", "diff", f"{tmp_path}/a", f"{tmp_path}/b")
    assert done.code == 1
    assert "layout compression" in done.out
    assert "The tokens or the boundaries of parts differ" in done.out


def test_many_differences_are_cut_short(headrace, tmp_path):
    write_cache(tmp_path / "a", [random_documents(3, seed=k) for k in range(20)])
    write_cache(tmp_path / "b", [random_documents(3, seed=k + 50) for k in range(20)])
    done = headrace("cache", "diff", f"{tmp_path}/a", f"{tmp_path}/b")
    assert "12 more of part (all with --json)" in done.out


def test_a_copy_in_another_layout_has_the_same_tokens(headrace, tmp_path):
    from headrace.store import CacheLayout

    a = write_cache(tmp_path / "a", [random_documents(5)])
    b = write_cache(tmp_path / "b", [random_documents(5)], layout=CacheLayout("uint8", 7, 3))
    assert {d.what for d in differences(a, b)} == {"layout chunk_elements", "layout shard_chunks"}
    assert "The tokens are the same." in headrace("cache", "diff", a.path, b.path).out


def test_against_levanter(headrace, tmp_path):
    a = write_cache(tmp_path / "a", [random_documents(5)])
    assert headrace("cache", "convert", a.path, f"{tmp_path}/l").code == 0
    found = {d.what for d in differences(a, open_cache(tmp_path / "l"))}
    assert {"layout dtype", "code version"} <= found
    assert not found & {"documents", "tokens", "tokenizer fingerprint"}


@pytest.fixture
def run(tmp_path):
    """A run's folder, and its config."""
    for seed, name in enumerate(("web", "code", "math")):
        write_cache(tmp_path / name, [random_documents(30, seed=seed)])
    path = tmp_path / "run.yaml"
    path.write_text(
        f"components:\n  web: {{cache: {tmp_path}/web, weight: 3}}\n  code: {{cache:"
        f" {tmp_path}/code}}\nseq_len: 8\nbatch_size: 8\n"
    )
    open_run(tmp_path / "run", load_config(str(path))).state(20)
    return tmp_path / "run", path


def test_a_run_and_its_own_config(headrace, run):
    done = headrace("run", "diff", *map(str, run))
    assert (done.code, done.out.split()[:3]) == (0, ["the", "same", "run"])
    assert json.loads(headrace("run", "diff", *map(str, run), "--json").out)["same"]


def test_the_differences_and_what_follows(headrace, run):
    folder, path = run
    path.write_text(path.read_text().replace("weight: 3", "weight: 2"))
    done = headrace("run", "diff", str(folder), str(path))
    assert done.code == 1
    assert "components.web.weight: 3 -> 2" in done.out
    assert "From step 20 on" in done.out
    assert "What follows" not in done.out
    assert "stages[0]" in headrace("run", "diff", str(folder), str(path), "--resolved").out


def test_what_no_amendment_can_say(headrace, run):
    done = headrace(
        "run", "diff", *map(str, run), "seed=7", "components.web.weight=1", "--step", "30"
    )
    assert done.code == 1
    assert "seed: not set -> 7" in done.out.split("A run cannot make these changes")[1]
    facts = json.loads(headrace("run", "diff", *map(str, run), "seed=7", "--json").out)
    assert (facts["amendment"], facts["refused"]) == (None, ["seed: not set -> 7"])


def test_a_folder_without_a_run_is_refused(headrace, run, tmp_path):
    done = headrace("run", "diff", f"{tmp_path}/web", str(run[1]))
    assert done.code == 2
    assert f"RUN = '{tmp_path}/web': is not the folder of a run" in done.err
