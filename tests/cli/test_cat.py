"""``headrace run cat``: what it shows is what the loader delivers, and it says where
that comes from.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from headrace.config import LmDataConfig, load_config
from headrace.ingest import LeafConfig, SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.tokenize import load_tokenizer
from headrace.run import open_run
from headrace.store import open_cache
from headrace.testing import tiny_cache, write_cache

Run = Callable[..., tuple[int, str, str]]
CONFIG = """
seq_len: {0: 32, 12: 64}
batch_size: 6
components:
  web: {cache: web, weight: 2}
  code: {cache: code, remove: gone.txt}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two caches, one with ids, and a config that filters, mixes and changes its rows."""
    monkeypatch.chdir(tmp_path)
    for name, files in (("web", 3), ("code", 2)):
        (tmp_path / f"{name}-text").mkdir()
        for i in range(files):
            texts = [f"{name} file {i} document {j}, " * (j % 9) for j in range(25)]
            lines = [
                json.dumps({"text": t, "meta": {"id": f"{name}/{i}/{j}"}})
                for j, t in enumerate(texts)
            ]
            (tmp_path / f"{name}-text" / f"{i}.jsonl").write_text("\n".join(lines))
        leaves = {"id": LeafConfig("meta.id")} if name == "web" else {}
        part_bytes = 10 if name == "web" else 1 << 20
        source = SourceConfig([f"{name}-text"], leaves=leaves)
        build_cache(
            source, TokenizerConfig(), name, part_bytes=part_bytes, chunk_tokens=256, progress=False
        )
    (tmp_path / "gone.txt").write_text("\n".join(map(str, range(0, 50, 3))))
    (tmp_path / "run.yaml").write_text(CONFIG)
    return "run.yaml"


def delivered(config: LmDataConfig, step: int) -> list[str]:
    tokens = config.loader(Mesh(np.array(jax.devices()[:1]), "data")).batch_at(step).tokens
    return [load_tokenizer(TokenizerConfig()).decode(row) for row in np.asarray(tokens).tolist()]


def shown(headrace: Run, *arguments: str) -> dict[str, Any]:
    code, out, err = headrace("run", "cat", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_it_shows_what_is_delivered_and_where_it_comes_from(headrace: Run, run: str):
    caches = {name: open_cache(name) for name in ("web", "code")}
    gone = set(range(0, 50, 3))
    epochs = set()
    files = set()
    for step in (0, 5, 11, 12, 90):
        facts = shown(headrace, run, "--step", str(step))
        assert (facts["step"], facts["batch_size"], facts["seq_len"]) == (
            step,
            6,
            32 if step < 12 else 64,
        )
        assert ["".join(s["text"] for s in r["spans"]) for r in facts["rows"]] == delivered(
            load_config(run), step
        )
        for row in facts["rows"]:
            assert row["cache"] == row["component"]
            epochs.add(row["epoch"])
            for span in row["spans"]:
                cache = caches[row["component"]]
                document = cache.document(span["document"])
                assert document.size == span["document_tokens"]
                cut = document[span["offset"] : span["offset"] + span["tokens"]]
                first = span["first_token"]
                assert np.array_equal(cut, cache.tokens(first, first + span["tokens"]))
                i, j = divmod(span["document"], 25)
                assert row["component"] == "web" or span["document"] not in gone
                assert span.get("id") == (f"web/{i}/{j}" if row["component"] == "web" else None)
                paths = [f["path"] for f in span["files"]]
                assert f"{row['component']}-text/{i}.jsonl" in paths
                assert len(paths) == (1 if row["component"] == "web" else 2)
                files.update(paths)
    assert max(epochs) > 0
    assert len(files) == 5


def test_settings_over_the_file_count(headrace: Run, run: str):
    facts = shown(headrace, run, "--step", "3", "seed=5", "batch_size=3", "row_order=stream")
    config = load_config(run, ["seed=5", "batch_size=3", "row_order=stream"])
    assert ["".join(s["text"] for s in r["spans"]) for r in facts["rows"]] == delivered(config, 3)
    assert [r["example"] for r in facts["rows"]] == [9, 10, 11]


def test_rows_are_shown_whole(headrace: Run, run: str):
    every = shown(headrace, run, "--step", "12")["rows"]
    some = shown(headrace, run, "--step", "12", "--row", "4", "--row", "1")["rows"]
    for span in (span for row in some for span in row["spans"]):
        path, line = span.pop("origin").split(", line ")
        text = json.loads(Path(path).read_text().splitlines()[int(line) - 1])["text"]
        assert span["text"] == f"{text}<eos>"[span["offset"] :][: len(span["text"])]
        assert span.pop("origin_problem") == ""
    assert some == [every[4], every[1]]
    code, out, _ = headrace("run", "cat", run, "--step", "12", "--row", "4")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == f"step 12  6 rows of 64 tokens, shown: 1 of {every[4]['component']}"
    assert lines[1].startswith(f"row 4  {every[4]['component']}  draw {every[4]['draw']}, epoch")
    for span in every[4]["spans"]:
        assert span["text"] in out
        assert f"document {span['document']:,}" in out
    assert out.count(".jsonl, line ") == len(every[4]["spans"])


def test_a_line_a_span_and_never_wider_than_asked(headrace: Run, run: str):
    code, out, _ = headrace("run", "cat", run, "--step", "2")
    assert code == 0
    facts = shown(headrace, run, "--step", "2")
    lines = out.splitlines()
    assert len(lines) == 1 + sum(2 + len(r["spans"]) for r in facts["rows"])
    assert max(map(len, lines)) <= 120
    assert "\x1b" not in out
    assert "web, part 00" in out
    assert "from one of 2 files: code-text/0.jsonl, code-text/1.jsonl" in out


def test_mistakes_say_what_to_do(headrace: Run, run: str):
    for arguments, words in (
        (
            ["--step", "0", "--row", "6"],
            "--row = 6: is not a row of this step. Its rows are numbered from 0 to 5.",
        ),
        (["--step", "-1"], "is not a step of this run. Steps count from 0."),
        (["--step", "20", "num_steps=20"], "is not a step of this run. Steps run from 0 to 19."),
        (
            ["--step", "0", "--tokenizer", "nothing.json"],
            "which has a tokenizer of its own, bytes. Leave it out.",
        ),
        (["--step", "0", "--tokenizer", "bytes"], None),  # the same
        (["--step", "0", "--id-leaf", "nope"], "is not a leaf of these caches."),
    ):
        code, _, err = headrace("run", "cat", run, *arguments)
        assert code == (0 if words is None else 2)
        assert (words or "") in err
        assert err.count("\n") == (0 if words is None else 1)


def test_a_run_is_recognised_and_left_as_it_was(headrace: Run, run: str, tmp_path: Path):
    open_run("runs", load_config(run))
    before = {p: p.read_bytes() for p in (tmp_path / "runs").iterdir()}
    assert shown(headrace, "runs", "--step", "40") == shown(headrace, run, "--step", "40")
    assert {p: p.read_bytes() for p in (tmp_path / "runs").iterdir()} == before
    code, _, err = headrace("run", "cat", "runs", "seed=1")
    assert code == 2
    assert "the run has another config: seed: not set -> 1" in err


def test_a_run_that_was_amended(headrace: Run, run: str):
    amended = "amendments=[{step: 30, weights: {code: 9}}]"
    open_run("runs", load_config(run, ["seq_len=32"]))
    open_run("runs", load_config(run, ["seq_len=32", amended]), step=25)
    for step in ("29", "30"):
        of_config = shown(headrace, run, "--step", step, "seq_len=32", amended)
        assert shown(headrace, "runs", "--step", step) == of_config


def test_ready_ids_are_spelled_or_decoded_as_told(
    headrace: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    cache = tiny_cache("ids", documents=40)
    (tmp_path / "run.yaml").write_text(
        "{seq_len: 8, batch_size: 2, shuffle: false, components: {a: {cache: ids}}}"
    )
    tokens = cache.tokens(0, 8).tolist()
    first = shown(headrace, "run.yaml")["rows"][0]
    assert " ".join(s["text"] for s in first["spans"]) == " ".join(map(str, tokens))
    assert [s["files"] for s in first["spans"]] == [[]] * len(first["spans"])
    spelled = shown(headrace, "run.yaml", "--tokenizer", "ids:256")["rows"][0]
    assert "".join(s["text"] for s in spelled["spans"]) == "".join(f"<{t}>" for t in tokens)


def test_what_is_trained_on_of_chats_is_marked(headrace: Run, tmp_path: Path):
    mask = lambda ids: ids % 2 == 1  # noqa: E731
    write_cache(tmp_path / "chat", [[np.arange(k, k + 9) for k in range(30, 60)]], mask=mask)
    tiny_cache(tmp_path / "texts")
    said = {
        "seq_len": 16,
        "batch_size": 8,
        "components": {n: {"cache": str(tmp_path / n)} for n in ("chat", "texts")},
    }
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps(said))
    rows = shown(headrace, str(config), "--step", "1")["rows"]
    batch = load_config(str(config)).loader(Mesh(np.array(jax.devices()[:1]), "data")).batch_at(1)
    assert {row["component"] for row in rows} == {"chat", "texts"}
    for row, tokens, trained in zip(
        rows, np.asarray(batch.tokens), np.asarray(batch.token_mask), strict=True
    ):
        for one in row["spans"]:
            here = slice(one["column"], one["column"] + one["tokens"])
            assert ("runs" in one) == (row["component"] == "chat")
            if "runs" in one:
                assert one["trained_tokens"] == trained[here].sum() == (tokens[here] % 2).sum()
                ids = [i for text, _ in one["runs"] for i in text.split()]
                assert ids == list(map(str, tokens[here]))
                assert [t for text, t in one["runs"] for _ in text.split()] == (
                    tokens[here] % 2 == 1
                ).tolist()
    _, out, _ = headrace(
        "run", "cat", str(config), "--step", "1", *(f"--row={k}" for k in range(8))
    )
    assert "of them trained on" in out
    assert "⟦" in out


def test_no_device_is_taken(run: str):
    """A run that trains holds the accelerator; looking into its data must not ask for it."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from headrace.cli import main; main()",
            "run",
            "cat",
            run,
            "--step",
            "3",
            "--row",
            "0",
        ],
        env={**os.environ, "JAX_PLATFORMS": "tpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("step 3  6 rows of 32 tokens, shown: 1 of ")
