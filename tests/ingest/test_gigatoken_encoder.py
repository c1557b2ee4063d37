"""gigatoken gives the ids of tokenizers, or is not used: by tokenizer, by text, by
what it holds.
"""

import functools
import json
import os
import random
import subprocess
import sys
import sysconfig
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import normalizers, pre_tokenizers

from headrace.errors import ConfigError
from headrace.ingest import gigatoken_encoder
from headrace.ingest.code_points import Ranges
from headrace.ingest.gigatoken_encoder import GigatokenEncoder, why_not
from headrace.ingest.part_builder import FROM_BYTES, check_tokenizer_engine, plan_encoding
from headrace.ingest.progress import EncoderCounts
from headrace.ingest.records import BadRecordError
from headrace.ingest.tokenize import ByteTokenizer, FileTokenizer

SPLITS = {
    "gpt-2": None,
    "llama-3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|"
    r"'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
ADDED = ["<pad>", "<s>", "</s>"]
PIECES = [
    *(
        "the",
        " quick",
        "'s",
        "'LL",
        "  ",
        "\n\n",
        "\t",
        "a" * 70,
        " " * 40,
        "12345",
        "²",
        "é",
        "e\u0301",
        "ſ",
        "日本",
        "😀",
    ),
    *("\u200d", "\x00", "\x85", "\u00a0", "\u2028", "<", *ADDED),
]


@pytest.fixture(scope="session", params=list(SPLITS))
def path(
    request: pytest.FixtureRequest, bpe_path: str, tmp_path_factory: pytest.TempPathFactory
) -> str:
    content = json.loads(Path(bpe_path).read_text())
    if (regex := SPLITS[request.param]) is not None:
        split = {
            "type": "Split",
            "pattern": {"Regex": regex},
            "behavior": "Isolated",
            "invert": False,
        }
        last = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        }
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, last]}
    file = tmp_path_factory.mktemp("split") / "tokenizer.json"
    file.write_text(json.dumps(content))
    return str(file)


def tokenizer_of(path: str, **policy: str) -> FileTokenizer:
    return FileTokenizer(Path(path).read_bytes(), path, **{"bos": "auto", **policy})


def with_gigatoken(tokenizer: FileTokenizer, code_points: Ranges) -> FileTokenizer:
    return tokenizer.encoding_with(GigatokenEncoder(tokenizer, code_points))


def same(tokenizer: FileTokenizer, texts: list[str], code_points: Ranges) -> EncoderCounts:
    return check_same(tokenizer, with_gigatoken(tokenizer, code_points), texts)


def check_same(tokenizer: FileTokenizer, faster: FileTokenizer, texts: list[str]) -> EncoderCounts:
    for values, wanted in zip(
        faster.encode_batch(texts), tokenizer.encode_batch(texts), strict=True
    ):
        assert values.dtype == wanted.dtype
        assert np.array_equal(values, wanted)
    assert isinstance(faster.encoder, GigatokenEncoder)
    return faster.encoder.take_counts()


@pytest.fixture(scope="session")
def both(path: str) -> tuple[FileTokenizer, FileTokenizer]:
    """A tokenizer, and the same with gigatoken; what Python's tables lack stands for what the two
    know differently.
    """
    unassigned = [unicodedata.category(chr(p)) == "Cn" for p in range(0x110000)]
    edges = np.flatnonzero(np.diff(np.array([False, *unassigned, False])))
    code_points = tuple((int(start), int(stop)) for start, stop in edges.reshape(-1, 2))
    return tokenizer_of(path), with_gigatoken(tokenizer_of(path), code_points)


TEXTS = st.lists(
    st.one_of(st.text(max_size=30), st.lists(st.sampled_from(PIECES), max_size=8).map("".join)),
    max_size=6,
)


@given(texts=TEXTS)
def test_the_ids_are_those_of_tokenizers(
    both: tuple[FileTokenizer, FileTokenizer], texts: list[str]
):
    counts = check_same(*both, texts)
    assert counts.fast + counts.slow == len(texts)


def test_texts_with_a_code_point_that_differs_go_to_tokenizers(path: str):
    texts = ["plain", "has ² in it", "é alone", "", "² first", "last ²"]
    assert same(tokenizer_of(path), texts, ((ord("²"), ord("²") + 1),)) == EncoderCounts(
        fast=3, slow=3
    )
    texts = ["plain", "has \x1c in it", "é alone", "é and \x1c"]
    assert same(tokenizer_of(path), texts, ((0x1C, 0x1D), (0x110, 0x120))) == EncoderCounts(
        fast=2, slow=2
    )


def test_it_starts_anew_at_a_bound(bpe_path: str):
    """Where the system tells what the process holds, and where it does not."""
    text = "word " * (1 << 18)
    for resident, texts, expected in (
        (lambda: None, 30, 1),
        (iter(range(0, 1 << 40, 100 << 20)).__next__, 12, 4),
    ):
        encoder = GigatokenEncoder(tokenizer_of(bpe_path), (), resident)
        ids = [encoder([text])[0] for _ in range(texts)]
        assert all(np.array_equal(one, ids[0]) for one in ids)
        assert encoder.take_counts(2) == EncoderCounts(fast=texts, compared=2, restarts=expected)
        assert encoder.take_counts() == EncoderCounts()


@pytest.mark.parametrize(
    "error", [ValueError("no"), type("PanicException", (BaseException,), {})("panicked")]
)
def test_a_text_at_which_it_fails_goes_to_tokenizers(
    bpe_path: str, monkeypatch: pytest.MonkeyPatch, error: BaseException
):
    load = gigatoken_encoder._load

    def failing(content: str) -> Callable[[str], np.ndarray]:
        encode = load(content)

        def one(text: str) -> np.ndarray:
            if "bad" in text:
                raise error
            return encode(text)

        return one

    monkeypatch.setattr(gigatoken_encoder, "_load", failing)
    assert same(tokenizer_of(bpe_path), ["good", "bad", "good again"], ()) == EncoderCounts(
        fast=2, slow=1
    )


def test_what_ends_the_process_is_no_failure(bpe_path: str, monkeypatch: pytest.MonkeyPatch):
    def interrupted(text: str) -> np.ndarray:
        raise KeyboardInterrupt

    monkeypatch.setattr(gigatoken_encoder, "_load", lambda content: interrupted)
    with pytest.raises(KeyboardInterrupt):
        GigatokenEncoder(tokenizer_of(bpe_path), ())(["text"])


def changed(bpe_path: str, change: Callable[[Library], None] | dict[str, Any]) -> FileTokenizer:
    library = Library.from_file(bpe_path)
    if callable(change):
        change(library)
    content = json.loads(library.to_str())
    if not callable(change):
        for where, value in change.items():
            *outer, key = where.split(".")
            inner = content
            for name in outer:
                inner = inner[int(name) if name.isdigit() else name]
            inner[key] = value
    return FileTokenizer(json.dumps(content).encode(), bpe_path, eos="none")


def with_normalizer(library: Library) -> None:
    library.normalizer = normalizers.NFC()


def with_spaces(library: Library) -> None:
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)


def with_whitespace(library: Library) -> None:
    library.pre_tokenizer = pre_tokenizers.Whitespace()


def with_digits(library: Library) -> None:
    steps = [
        pre_tokenizers.Digits(),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    library.pre_tokenizer = pre_tokenizers.Sequence(steps)  # pyright: ignore[reportArgumentType]


def with_another_regex(library: Library) -> None:
    from tokenizers import Regex

    steps = [
        pre_tokenizers.Split(Regex(r"\w+|\W"), "isolated"),
        pre_tokenizers.ByteLevel(False, use_regex=False),
    ]
    library.pre_tokenizer = pre_tokenizers.Sequence(steps)  # pyright: ignore[reportArgumentType]


UNCOVERED: dict[str, tuple[Any, str]] = {
    "normalizer": (with_normalizer, "has a normalizer (NFC)"),
    "prefix": (with_spaces, "puts a space before"),
    "whitespace": (with_whitespace, "ends with Whitespace"),
    "digits": (with_digits, "a step 'Digits'"),
    "regex": (with_another_regex, "does not load it"),
    "byte fallback": ({"model.byte_fallback": True}, "byte_fallback"),
    "dropout": ({"model.dropout": 0.1}, "dropout"),
    "lstrip": ({"added_tokens.1.lstrip": True}, "'<s>' is marked lstrip"),
    "single word": ({"added_tokens.2.single_word": True}, "'</s>' is marked single_word"),
    "normalized": ({"added_tokens.0.normalized": True}, "only some"),
    "no cuts": ({"pre_tokenizer.use_regex": False}, "splits twice, or not at all"),
    "odd entry": ({"model.vocab. x": 5000}, "spells no bytes"),
}


@pytest.mark.parametrize("name", list(UNCOVERED))
def test_what_is_not_covered_is_named(bpe_path: str, name: str):
    change, reason = UNCOVERED[name]
    tokenizer = changed(bpe_path, change)
    assert reason in (why_not(tokenizer, "text") or "")
    with pytest.raises(ConfigError, match=r"tokenizer\.engine") as error:
        check_tokenizer_engine("gigatoken", tokenizer, "text")
    assert reason in str(error.value)
    assert "Say tokenizers, or auto" in str(error.value)
    check_tokenizer_engine("auto", tokenizer, "text")
    assert plan_encoding("auto", tokenizer, "text", [FROM_BYTES]).reason == why_not(
        tokenizer, "text"
    )


def test_other_models_tokenizers_and_kinds(bpe_path: str, panicking_path: str):
    words = FileTokenizer(Path(panicking_path).read_bytes(), panicking_path, eos="none")
    assert "its model is WordLevel" in (why_not(words, "text") or "")
    assert "no tokenizer.json" in (why_not(ByteTokenizer(), "text") or "")
    assert "'chat'" in (why_not(tokenizer_of(bpe_path), "chat") or "")
    assert why_not(tokenizer_of(bpe_path), "text") is None
    assert why_not(tokenizer_of(bpe_path).reading_special("error"), "text") is None
    assert "to be text" in (why_not(tokenizer_of(bpe_path).reading_special("text"), "text") or "")


def test_special_tokens_in_texts_are_refused_here_too(bpe_path: str):
    faster = with_gigatoken(tokenizer_of(bpe_path), ()).reading_special("error")
    assert isinstance(faster.encoder, GigatokenEncoder)
    with pytest.raises(BadRecordError, match="spells out the special token '</s>'"):
        faster.encode_batch(["a", "b </s>"])


def test_not_installed(bpe_path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gigatoken_encoder.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="is not installed") as error:
        check_tokenizer_engine("gigatoken", tokenizer_of(bpe_path), "text")
    assert "pip install 'headrace[gigatoken]'" in str(error.value)
    encoding = plan_encoding("auto", tokenizer_of(bpe_path), "text", [FROM_BYTES])
    assert (encoding.engine, encoding.reason) == (
        "tokenizers",
        "the package gigatoken is not installed",
    )


def test_no_engine(bpe_path: str):
    with pytest.raises(ConfigError, match="is no engine"):
        check_tokenizer_engine("fast", tokenizer_of(bpe_path), "text")


def test_auto_takes_it_where_there_is_enough_to_do(bpe_path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gigatoken_encoder, "code_points_of", lambda tokenizer: ((7, 9),))
    tokenizer = tokenizer_of(bpe_path)
    assert plan_encoding("auto", tokenizer, "text", [FROM_BYTES // 2] * 2).report() == {
        "tokenizer_engine": "gigatoken",
        "engine_reason": "",
        "differing_code_points": 2,
    }
    assert plan_encoding("gigatoken", tokenizer, "text", [1]).engine == "gigatoken"
    assert plan_encoding("auto", tokenizer, "text", [FROM_BYTES - 1]) == ("tokenizers", "", None)
    assert plan_encoding("tokenizers", tokenizer, "text", [FROM_BYTES]) == ("tokenizers", "", None)
    assert plan_encoding("auto", ByteTokenizer(), "text", [FROM_BYTES]) == ("tokenizers", "", None)
    assert plan_encoding("auto", tokenizer, "text", []).engine == ""


def awkward_texts(count: int, rng: random.Random) -> list[str]:
    """Documents of random code points, of pieces that are special somewhere, and of long runs."""
    pools = [
        range(0x110000),
        range(0x3000),
        range(0x80),
        range(0x2000, 0x2100),
        [ord(c) for c in "aA1² \n\u00a0'!é"],
    ]
    texts: list[str] = []
    for i in range(count):
        length = rng.randrange(1, 60)
        if i % 3 == 0:
            points = (rng.choice(pools[i % 5]) for _ in range(length))
            texts.append("".join(chr(p) for p in points if not 0xD800 <= p < 0xE000))
        elif i % 3 == 1:
            texts.append("".join(rng.choice(PIECES) for _ in range(length)))
        else:
            texts.append(
                "x"
                + rng.choice(" a\n\u00a0中1!") * rng.randrange(1, 3000 if i % 30 == 2 else 200)
                + rng.choice(["", "b", " ", "."])
            )
    return texts


@pytest.mark.slow
def test_a_hundred_thousand_awkward_documents(path: str):
    tokenizer = tokenizer_of(path)
    code_points = gigatoken_encoder.code_points_of(
        tokenizer
    )  # in the user's own folder: 20 s of CPU once
    rng = random.Random(16)
    counts = EncoderCounts()
    faster = with_gigatoken(tokenizer, code_points)
    for _ in range(100):
        counts += check_same(tokenizer, faster, awkward_texts(1000, rng))
    assert counts.fast + counts.slow == 100_000
    assert counts.slow < 10_000


SCRIPTS = [
    *(
        (0x41, 0x5B),
        (0x61, 0x7B),
        (0xC0, 0x250),
        (0x370, 0x530),
        (0x590, 0x6FF),
        (0x900, 0xE00),
        (0x3040, 0x30FF),
    ),
    *((0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x1F300, 0x1F64F)),
]


@functools.cache
def files_here() -> list[Path]:
    folders = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib")]
    endings = (
        ".py",
        ".pyi",
        ".txt",
        ".md",
        ".rst",
        ".json",
        ".html",
        ".js",
        ".css",
        ".h",
        ".po",
        ".svg",
    )
    return [
        path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in endings
    ]


def kinds_of_text(rng: random.Random) -> list[str]:
    """Some 2 MB of many kinds: code, prose, markup, numbers, scripts of all sorts, awkward
    documents.
    """
    texts = awkward_texts(300, rng)
    for path in rng.sample(files_here(), 120):
        texts.append(path.read_text(errors="replace")[:100_000])
    for start, stop in SCRIPTS:
        words = (
            "".join(chr(rng.randrange(start, stop)) for _ in range(rng.randrange(1, 12)))
            for _ in range(600)
        )
        texts.append(rng.choice([" ", "\n", ", ", " 1."]).join(words))
    texts.append(" ".join(str(rng.random()) for _ in range(2000)))
    return texts


SOAK_S = float(os.environ.get("HEADRACE_SOAK_SECONDS", "300"))


@pytest.mark.soak
def test_text_of_many_kinds_has_the_same_ids(bpe_path: str):
    """Other text with each seed, for five minutes; prints how much (``pytest -m soak -s``)."""
    tokenizer = tokenizer_of(bpe_path)
    faster = with_gigatoken(tokenizer, gigatoken_encoder.code_points_of(tokenizer))
    began = time.monotonic()
    total = 0
    seed = 0
    counts = EncoderCounts()
    while time.monotonic() - began < SOAK_S:
        texts = kinds_of_text(random.Random(seed))
        counts += check_same(tokenizer, faster, texts)
        total += sum(len(t.encode()) for t in texts)
        seed += 1
    print(f"{total / 1e6:,.0f} MB with the same ids, {seed} seeds, {counts}")


@pytest.mark.soak
def test_memory_is_flat_over_random_words(bpe_path: str):
    """400 MB of them. Without a bound they would leave about 3 GB behind."""
    program = f"""
from headrace.ingest import gigatoken_encoder
from headrace.ingest.tokenize import TokenizerConfig, load_tokenizer
import numpy as np, resource
tokenizer = load_tokenizer(TokenizerConfig({bpe_path!r}, eos="</s>"))
faster = tokenizer.encoding_with(gigatoken_encoder.GigatokenEncoder(tokenizer, ()))
random = np.random.default_rng(0)
for megabytes in range(400):
    letters = random.integers(97, 123, 1_000_000, dtype=np.uint8)
    letters[random.random(letters.size) < .14] = 32
    faster.encode_batch([letters.tobytes().decode()])
    if megabytes in (99, 399):
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
print(faster.encoder.take_counts())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    early, late, counts = done.stdout.splitlines()
    print(f"peak {early} MiB after 100 MB, {late} MiB after 400 MB; {counts}")
    assert int(late) < int(early) + 150
