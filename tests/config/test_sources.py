"""Caches that a config builds: all bad files of all sources are named first, with cures for a
config.
"""

import json
from pathlib import Path

import pytest

from headrace.config import LmDataConfig, load_config
from headrace.config.sources import in_config, source_faults
from headrace.errors import SourceError

CONFIG = """\
seq_len: 16
batch_size: 4
num_steps: 2
tokenizer: {path: bytes}
components:
  code: {cache: caches/code, source: {paths: [texts/code.txt]}, expected_tokens: 1000}
  chat:
    cache: caches/chat
    source: {paths: [texts/chat.jsonl], text_field: text}
    expected_tokens: 1000
  web: {cache: caches/web, source: {paths: ['texts/web/*.jsonl']}, expected_tokens: 1000}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LmDataConfig:
    monkeypatch.chdir(tmp_path)
    Path("texts/web").mkdir(parents=True)
    Path("texts/code.txt").write_text("def f():\n    return 1\n" * 50)
    rows = [json.dumps({"body": f"words {k} " * 20}) + "\n" for k in range(30)]
    Path("texts/chat.jsonl").write_text("".join(rows))
    for name in ("a", "b"):
        Path(f"texts/web/{name}.jsonl").write_text("".join(rows).replace("body", "text"))
    with Path("texts/web/b.jsonl").open("a") as file:
        file.write("no json\n")
    Path("run.yaml").write_text(CONFIG)
    return load_config("run.yaml")


def test_all_bad_files_are_named_before_any_cache_is_built(config: LmDataConfig):
    with pytest.raises(SourceError) as caught:
        config.build_caches(progress=False)
    chat, web = caught.value.faults
    assert (chat.field, web.field) == ("texts/chat.jsonl", "texts/web/b.jsonl, line 31")
    assert chat.cure == "Choose another field: components.chat.source.text_field: body."
    assert "components.web.source.on_bad_line: skip; finished parts are kept" in (web.cure or "")
    assert "--" not in str(caught.value)
    assert not Path("caches").exists()
    cured = ["components.chat.source.text_field=body", "components.web.source.on_bad_line=skip"]
    load_config("run.yaml", cured).build_caches(progress=False)
    assert (
        source_faults(config.components, config.tokenizer) == {}
    )  # what is built is not looked at
    assert config.open_caches()["web"].num_documents == 60


def test_a_source_that_is_not_there_is_one_of_them(config: LmDataConfig):
    Path("texts/code.txt").unlink()
    faults = source_faults(config.components, config.tokenizer)
    assert [(name, len(some)) for name, some in faults.items()] == [
        ("code", 1),
        ("chat", 1),
        ("web", 1),
    ]
    assert str(faults["code"][0]).startswith("components.code.source = 'texts/code.txt': does not")


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("Say --kind tokens.", "Say components.a.source.kind: tokens."),
        ("Try another --kind.", "Try another components.a.source.kind."),
        (
            "Say --field question=prompt --field answer=completion.",
            "Say components.a.source.fields: {question: prompt, answer: completion}.",
        ),
        ("Pass --chat-template FILE.", "Pass components.a.source.chat.template: FILE."),
        ("Convert the file.", "Convert the file."),
    ],
)
def test_options_become_fields(typed: str, written: str):
    assert in_config(SourceError("is bad", field="x", cure=typed), "a").cure == written
