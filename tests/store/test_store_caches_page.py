"""docs/caches.md: every command runs as it is printed, every message that it quotes is one that
headrace says.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from headrace.cli import main
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache
from headrace.store import open_cache, retry
from headrace_levanter.export import write_levanter

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "caches.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
THEIR_OWN = re.compile("--engine (ray|zephyr)")  # these need the real standard error of a process
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}{{"
    " m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def write_lines(path: Path, records: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in records))


def train(path: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox"], trainer)
    path.parent.mkdir(exist_ok=True)
    tokenizer.save(str(path))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with all that the page's commands name."""
    monkeypatch.chdir(tmp_path)
    train(tmp_path / "tokenizer.json")
    train(tmp_path / "chat-model" / "tokenizer.json")
    (tmp_path / "chat-model" / "chat_template.jinja").write_text(TEMPLATE)
    records = [
        {"text": f"the quick fox {i} " * 9, "id": f"doc-{i}", "meta": {"score": i / 7}}
        for i in range(40)
    ]
    write_lines(tmp_path / "corpus" / "a.jsonl", records[:25])
    write_lines(tmp_path / "corpus" / "more" / "b.jsonl", records[25:])
    for name, text in (
        ("notes/one.txt", "A note.\n"),
        ("src/lib/f.py", "def f():\n    return 1\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    messages = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    write_lines(tmp_path / "chats.jsonl", [{"messages": messages}] * 5)
    write_lines(tmp_path / "pairs.jsonl", [{"prompt": "2+2=", "chosen": "4", "rejected": "5"}] * 5)
    orca = {"system": "Be brief.", "question": "2+2=", "chosen": "4", "rejected": "5"}
    write_lines(tmp_path / "orca.jsonl", [orca] * 5)
    write_lines(tmp_path / "questions.jsonl", [{"prompt": "2+2=", "answer": "4"}] * 5)
    (tmp_path / "takedowns.txt").write_text("4\n5\n")
    (tmp_path / "ids-kept.yaml").write_text(
        "seq_len: 64\nbatch_size: 4\ncomponents: {docs: caches/ids-kept}\namendments: [{step: 2,"
        " caches: {docs: 3}}]\n"
    )
    appended = [{"text": f"the new fox {i} " * 9, "id": f"new-{i}"} for i in range(20)]
    write_lines(tmp_path / "corpus-new" / "c.jsonl", appended)
    write_lines(tmp_path / "ids.jsonl", [{"ids": [1, 2, 50303]}] * 5)
    write_broken(tmp_path / "broken")
    write_tables(tmp_path)
    write_megatron(tmp_path / "tokens_text_document")
    (tmp_path / "megatron").mkdir()
    write_megatron(tmp_path / "megatron" / "web_text_document")
    (tmp_path / "mix").mkdir()
    (tmp_path / "mix" / "part-0.npy").write_bytes(bytes(range(40)))
    corpus = SourceConfig([str(tmp_path / "corpus")])
    build_cache(corpus, TokenizerConfig("tokenizer.json"), "theirs/source", progress=False)
    write_levanter(open_cache("theirs/source"), "theirs/train")
    ledger = json.loads(Path("theirs/train/shard_ledger.json").read_text())
    del ledger["metadata"]["preprocessor_metadata"][
        "headrace"
    ]  # as Levanter itself would have written it
    Path("theirs/train/shard_ledger.json").write_text(json.dumps(ledger))
    before = retry.use_policy(retry.RetryPolicy(first_delay_s=0.01))
    yield tmp_path
    retry.use_policy(before)


def write_broken(folder: Path) -> None:
    write_lines(folder / "column.jsonl", [{"body": f"row {k}"} for k in range(30)])
    records = [{"text": f"row {k}"} for k in range(30)]
    good = "".join(json.dumps(record) + "\n" for record in records)
    lines = good.splitlines()
    (folder / "line.jsonl").write_text("\n".join([*lines[:2], "no JSON", *lines[2:]]))


def write_tables(folder: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (folder / "tables").mkdir()
    for i in range(2):
        parquet.write_table(
            pa.table({"body": [f"row {j}" for j in range(9)]}),
            folder / f"tables/part-{i:03}.parquet",
        )
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": ["one", "two"]}).save_to_disk(str(folder / "saved"))


def write_megatron(prefix: Path) -> None:
    import numpy as np

    lengths = np.array([3, 2], np.int32)
    np.arange(5, dtype=np.uint16).tofile(f"{prefix}.bin")
    with Path(f"{prefix}.idx").open("wb") as f:
        f.write(b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([8]))
        f.write((2).to_bytes(8, "little") + (3).to_bytes(8, "little") + lengths.tobytes())
        f.write(np.array([0, 6], np.int64).tobytes() + np.array([0, 1, 2], np.int64).tobytes())


def run(
    line: str, bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command; ``# ends with N`` is the exit status that the page promises, else 0."""
    command, _, remark = line.partition("  # ends with ")
    words = shlex.split(command.replace("my-bucket", bucket))
    if words[0] != "headrace":
        subprocess.run(words, check=True)
        return
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capsys.readouterr()
    assert int(left.value.code or 0) == int(remark or 0), f"{line}\n{out}\n{err}"
    if "--json" in words and "gs://" in command:
        assert json.loads(out)["requests"] > 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_commands_run(
    place: Path,
    gcs_bucket: str,
    s3_bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    assert gcs_bucket.partition("://")[2] == s3_bucket.partition("://")[2]
    lines = [line for block in BLOCKS for line in block.splitlines() if not THEIR_OWN.search(line)]
    assert len(lines) > 30
    for line in lines:
        run(line, gcs_bucket.partition("://")[2], monkeypatch, capsys)
    assert open_cache("caches/theirs").ledger.tokenizer["stated"] is True
    assert open_cache("caches/web").fingerprint == open_cache("theirs/source").fingerprint


def test_the_error_about_bad_files_is_printed_as_it_is(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (printed,) = re.findall(r"```text\n(error .*?)```", PAGE, re.DOTALL)
    (line,) = (line for line in PAGE.splitlines() if line.startswith("headrace build broken/ "))
    monkeypatch.setattr(sys, "argv", shlex.split(line.partition("  # ")[0]))
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err == printed


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_the_command_for_ray_runs(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("ray")
    (line,) = [line for block in BLOCKS for line in block.splitlines() if "--engine ray" in line]
    run(line, "", monkeypatch, capsys)


def test_the_messages_that_it_quotes_are_said():
    source = "\n".join(p.read_text() for p in (ROOT / "lib" / "headrace" / "src").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # texts that are cut over lines
    failures = (ROOT / "docs" / "failures.md").read_text()
    rows = failures.partition("## Caches\n")[2].partition("\n## ")[0].splitlines()[3:]
    quoted = [text for row in rows for text in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(quoted) > 5
    for text in quoted:
        pattern = re.escape(text).replace("gzip", r"\{\w+\}").replace(r"\.\.\.", r"\{\w+\}")
        assert re.search(pattern, source) or text == "Digest mismatch", text
