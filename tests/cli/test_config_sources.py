"""``headrace config check`` looks at the sources of caches that are not built yet."""

import json
from pathlib import Path

import pytest

CONFIG = """\
seq_len: 16
batch_size: 4
num_steps: 2
tokenizer: {path: bytes}
components:
  chat: {cache: caches/chat, source: {paths: [texts/chat.jsonl]}, expected_tokens: 1000}
  web: {cache: caches/web, source: {paths: ['texts/web/*.jsonl']}, expected_tokens: 1000}
"""
CURED = ["components.chat.source.text_field=body", "components.web.source.on_bad_line=skip"]


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts/web").mkdir(parents=True)
    rows = [json.dumps({"body": f"words {k} " * 20}) + "\n" for k in range(30)]
    Path("texts/chat.jsonl").write_text("".join(rows))
    Path("texts/web/a.jsonl").write_text("".join(rows).replace("body", "text") + "no json\n")
    Path("run.yaml").write_text(CONFIG)


def test_bad_sources_are_problems(headrace):
    checked = headrace("config", "check", "run.yaml", "--json")
    assert checked.code == 1
    found = [f for f in json.loads(checked.out)["findings"] if f["rule"] == "bad_source"]
    assert [(f["level"], f["field"]) for f in found] == [
        ("problem", "components.chat.source"),
        ("problem", "components.web.source"),
    ]
    assert "texts/chat.jsonl: each of its first 30 records fails alike" in found[0]["problem"]
    assert headrace("config", "check", "run.yaml", "--declared").code == 0
    assert headrace("config", "check", "run.yaml", *CURED).code == 0


def test_they_come_before_the_cache_that_is_not_there(headrace):
    unsized = "components.chat.expected_tokens=null"
    checked = headrace("config", "check", "run.yaml", unsized)
    assert checked.code == 2
    assert "error 2 files cannot be built from" in checked.err
    checked = headrace("config", "check", "run.yaml", unsized, *CURED)
    assert checked.code == 2
    assert "components.chat.cache = 'caches/chat': is not a token cache" in checked.err
