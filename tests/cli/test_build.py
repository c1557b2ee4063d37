"""``headrace build``: what it prints, how it ends, and one readable line for everything that can be
wrong.
"""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli.build import summary
from headrace.cli.inspect import build_command
from headrace.ingest.build import BuildReport
from headrace.ingest.progress import EncoderCounts
from headrace.store import open_cache

BYTES = ("--tokenizer", "bytes")
Run = Callable[..., tuple[int, str, str]]


def test_a_build_ends_with_a_summary_and_the_next_command(
    headrace: Run, corpus: Path, tmp_path: Path
):
    output = tmp_path / "my cache"
    code, out, err = headrace("build", str(corpus), "--output", str(output), *BYTES)
    assert (code, err) == (0, "")
    assert "15 documents" in out
    assert "1 part." in out
    assert "3 documents without text" in out
    assert out.splitlines()[-1] == f"Next: headrace cache inspect '{output}'"
    assert open_cache(str(output)).num_documents == 15
    code, out, _ = headrace("build", str(corpus), "-o", str(output), *BYTES)
    assert code == 0
    assert "is already finished" in out


def test_all_options(headrace: Run, corpus: Path, tmp_path: Path):
    (corpus / "a.dat").write_text('{"body": "x"}\nbad\n')
    code, out, _ = headrace(
        "build",
        str(corpus / "a.dat"),
        "-o",
        str(tmp_path / "c"),
        "-t",
        "bytes",
        "--eos",
        "none",
        "--bos",
        "auto",
        "--text-field",
        "body",
        "--on-bad-line",
        "skip",
        "--format",
        "jsonl",
        "--chunk-tokens",
        "16",
        "--compression",
        "zstd",
        "--dtype",
        "uint32",
    )
    assert code == 0
    assert f"1 bad line skipped, the first: {corpus}/a.dat, line 2: is not valid JSON" in out
    cache = open_cache(str(tmp_path / "c"))
    assert cache.document(0).tolist() == [257, ord("x")]
    assert (cache.layout.dtype, cache.layout.chunk_elements, cache.layout.compression) == (
        "uint32",
        16,
        "zstd",
    )


def test_kinds_leaves_and_engines(headrace: Run, tmp_path: Path):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    lines = [json.dumps({"talk": messages, "meta": {"id": f"d{i}"}, "n": i}) for i in range(4)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    arguments = (
        "build",
        str(tmp_path / "a.jsonl"),
        "-o",
        str(tmp_path / "c"),
        *BYTES,
        "--kind",
        "chat",
        "--field",
        "messages=talk",
        "--leaf",
        "id=meta.id",
        "--leaf",
        "n=n:int32",
        "--chat-template",
        str(tmp_path / "t.jinja"),
        "--engine",
        "pool",
        "--workers",
        "1",
    )
    code, _, err = headrace(*arguments)
    assert code == 2
    assert "--mask roles --mask-role assistant" in err
    code, _, err = headrace(*arguments, "--mask", "roles", "--mask-role", "assistant")
    assert (code, err) == (0, "")
    cache = open_cache(str(tmp_path / "c"))
    assert bytes(cache.document(0).tolist()) == b"<user>q<assistant>a"
    assert [leaf["name"] for leaf in cache.ledger.leaves] == ["loss_mask", "id", "n"]
    words = shlex.split(build_command(str(tmp_path / "c"), cache.ledger))
    code, out, err = headrace(*words[1:])
    assert (code, err) == (0, "")
    assert "is already finished" in out


def test_repair(headrace: Run, corpus: Path, tmp_path: Path):
    command = ("build", str(corpus), "-o", str(tmp_path / "c"), *BYTES, "--part-bytes", "1")
    assert headrace(*command)[0] == 0
    (data,) = (tmp_path / "c" / "parts" / "00001" / "input_ids" / "data" / "c").iterdir()
    good = data.read_bytes()
    data.write_bytes(good[:10] + bytes([good[10] ^ 1]) + good[11:])
    code, out, err = headrace(*command, "--repair")
    assert code == 0
    assert "1 damaged part" in err
    assert "1 part in" in out
    assert data.read_bytes() == good


def test_extensions(headrace: Run, tmp_path: Path):
    for name in ("a.py", "b.rs", "c.txt"):
        (tmp_path / name).write_text(name)
    arguments = ("--extension", ".py", "--extension", ".rs")
    code, out, _ = headrace("build", str(tmp_path), "-o", str(tmp_path / "c"), *BYTES, *arguments)
    assert code == 0
    assert "2 documents" in out


def test_json(headrace: Run, corpus: Path, tmp_path: Path):
    code, out, _ = headrace("build", str(corpus), "-o", str(tmp_path / "c"), *BYTES, "--json")
    assert code == 0
    assert BuildReport(**json.loads(out)).documents == 15


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ("", ["nowhere"], "does not exist"),
        ("", ["corpus", "--tokenizer", "nowhere.json"], "nowhere.json"),
        ("", ["corpus", "--eos", "<nope>"], "is not a token"),
        ("", ["corpus", "--dtype", "uint8"], "cannot hold a vocabulary of 258"),
        (
            "",
            ["corpus/1.jsonl", "--text-field", "body"],
            "1.jsonl: each of its first 5 records fails alike: has no field 'body' (it has 'text')",
        ),
        ("", ["corpus", "--chunk-tokens", "0"], "chunk_tokens = 0"),
        (
            "",
            ["corpus/1.jsonl", "--format", "text", "--text-field", "body"],
            "text_field = 'body': names a field",
        ),
        (
            "",
            ["corpus", "--engine", "dask"],
            "--engine = 'dask': is not a choice here. Known names: 'auto'",
        ),
        ('{"text": ', ["corpus"], "1.jsonl, line 1: is not valid JSON"),
        ('{"text": "\udcff"}', ["corpus"], "1.jsonl, line 1: is not UTF-8"),
        ("", ["corpus/[0].txt"], "matches no file"),
    ],
)
def test_bad_input_is_one_readable_line(
    headrace: Run,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    arguments: list[str],
    message: str,
):
    monkeypatch.chdir(tmp_path)
    (corpus / "0.jsonl").unlink()
    if change:
        (corpus / "1.jsonl").write_text(change, errors="surrogateescape")
    tokenizer = () if "--tokenizer" in arguments else BYTES
    code, out, err = headrace("build", *arguments, "--output", "cache", *tokenizer)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("error ")
    assert err.count("\n") == 1


def test_other_settings_on_an_existing_output(headrace: Run, corpus: Path, tmp_path: Path):
    command = ("build", str(corpus), "-o", str(tmp_path / "c"), *BYTES)
    assert headrace(*command)[0] == 0
    code, _, err = headrace(*command, "--eos", "none")
    assert code == 2
    assert "eos '<eos>' there, none now" in err
    assert "--restart" in err
    code, _, err = headrace(*command, "--eos", "none", "--restart")
    assert (code, f"the finished cache {tmp_path}/c is deleted" in err) == (0, True)
    assert headrace("build", str(corpus), "-o", str(tmp_path / "d"), *BYTES, "--restart")[2] == ""


def test_ctrl_c_says_how_to_go_on(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' * 3_000_000)
    # whoever started the tests may have ignored the signal, which children inherit
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program += "from headrace.cli import main; main()"
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            program,
            "build",
            str(tmp_path / "a.jsonl"),
            "-o",
            str(tmp_path / "c"),
            *BYTES,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not (tmp_path / "c" / "ledger.json").exists():
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert err.splitlines() == [
        "interrupted: finished parts are kept; run the same command again to continue"
    ]


def test_help_has_examples_and_loads_no_jax():
    code = """
import sys
sys.argv = ["headrace", "build", "--help"]
from headrace.cli import main
try:
    main()
finally:
    print("loaded:", sorted({"jax", "tensorstore", "tokenizers"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "headrace build corpus/ --output cache --tokenizer tokenizer.json" in done.stdout
    assert "loaded: []" in done.stdout


def test_documents_for_filling_in_the_middle(headrace, tmp_path):
    rows = [list(range(1, 30 + k)) for k in range(40)]
    (tmp_path / "ids.jsonl").write_text(
        "".join(json.dumps({"input_ids": row}) + "\n" for row in rows)
    )
    command = [
        "build",
        str(tmp_path / "ids.jsonl"),
        "-o",
        str(tmp_path / "out"),
        "-t",
        "ids:100",
        "--kind",
        "tokens",
    ]
    done = headrace(*command, "--fim", "97", "98", "99", "--fim-rate", "1", "--fim-spm-rate", "0")
    assert done.code == 0, done.err
    cache = open_cache(str(tmp_path / "out"))
    for k, row in enumerate(rows):
        found = cache.document(k).tolist()
        prefix, suffix, middle = (found.index(sign) for sign in (97, 98, 99))
        assert (
            found[:prefix]
            + found[prefix + 1 : suffix]
            + found[middle + 1 :]
            + found[suffix + 1 : middle]
            == row
        )
    again = headrace(*shlex.split(build_command(str(tmp_path / "out"), cache.ledger))[1:])
    assert "is already finished" in again.out
    refused = headrace(*command, "--fim", "97", "98", "100")
    assert refused.code == 2
    assert "fim.middle" in refused.err


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tokenizer_engine": "tokenizers"}, ""),
        (
            {"tokenizer_engine": "tokenizers", "engine_reason": "it has a normalizer (NFC)"},
            "by tokenizers: it has a norm",
        ),
        (
            {"tokenizer_engine": "gigatoken", "encoded": EncoderCounts(7, 0, 2)},
            "by gigatoken: 7 documents; 2 checked against tokenizers.",
        ),
        (
            {"tokenizer_engine": "gigatoken", "encoded": EncoderCounts(7, 1)},
            "8 documents, 1 of them by tokenizers",
        ),
        (
            {
                "tokenizer_engine": "gigatoken",
                "encoded": EncoderCounts(differences=("a.jsonl, line 3",)),
            },
            "The encoders differ at a.jsonl, line 3: 1 part built with tokenizers only.",
        ),
    ],
)
def test_the_summary_says_what_encoded(fields: dict[str, object], said: str):
    report = BuildReport("c", 8, 9, 9, 0, "", 0, {}, None, 0, 1, 0, 9, 9, seconds=1.0, **fields)
    lines = summary(report).splitlines()[2:-1]
    assert said in "\n".join(lines)
    assert bool(lines) == bool(said)


def test_an_engine_that_cannot_be_used(headrace: Run, corpus: Path, tmp_path: Path):
    options = ("build", str(corpus), "-o", str(tmp_path / "c"), *BYTES, "--tokenizer-engine")
    code, _, err = headrace(*options, "gigatoken")
    assert code == 2
    assert "tokenizer.engine" in err
    assert "'bytes' is no tokenizer.json" in err
    assert headrace(*options, "auto")[0] == 0


@pytest.mark.parametrize("kind", ["", ":fixed"])
def test_a_list_for_one_number_is_kept_as_the_error_says(headrace, tmp_path: Path, kind: str):
    (tmp_path / "in.jsonl").write_text('{"input_ids": [1, 2], "scores": [3, 4]}\n')
    arguments = ["build", str(tmp_path / "in.jsonl"), "--tokenizer", "ids:8", "--kind", "tokens"]
    leaf = f"score=scores:int32{kind}"
    refused = headrace(*arguments, "--output", str(tmp_path / "c"), "--leaf", leaf)
    assert refused.code == 2
    options = re.findall(r"--leaf ([^\s;.]+)", refused.err)
    assert len(options) == 2
    for number, option in enumerate(options):
        output = str(tmp_path / f"c{number}")
        assert headrace(*arguments, "--output", output, "--leaf", option).code == 0
        assert open_cache(output).leaf("score").num_elements == 2
