"""Every code point is compared: what two encoders know differently is found, by a probe that shows
all cuts.
"""

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from headrace.ingest import code_points
from headrace.ingest.code_points import (
    ALL_POINTS,
    Encode,
    byte_names,
    differing_code_points,
    digest_of,
    known_or_computed,
    probe_of,
    table_of,
)

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SOME = range(0xA0, 0x250)


def rules(bpe_path: str, regex: str) -> dict[str, object]:
    content = json.loads(Path(bpe_path).read_text())
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    last = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    steps = {"type": "Sequence", "pretokenizers": [split, last]}
    return {
        **content,
        "pre_tokenizer": steps,
        "truncation": None,
        "padding": None,
        "post_processor": None,
    }


def encode_with(content: dict[str, object]) -> Encode:
    library = Tokenizer.from_str(json.dumps(content))

    def encode(texts: Sequence[str]) -> list[bytes]:
        return [
            np.array(e.ids, np.uint32).tobytes()
            for e in library.encode_batch_fast(list(texts), add_special_tokens=False)
        ]

    return encode


def compared(bpe_path: str, regex: str, points: range = SOME) -> set[int]:
    """The code points whose class another regex has otherwise."""
    one, other = (rules(bpe_path, r) for r in (GPT2, regex))
    plain = (encode_with(one), encode_with(other))
    probe = (encode_with(probe_of(one)), encode_with(probe_of(other)))
    return {
        p for start, stop in differing_code_points(plain, probe, points) for p in range(start, stop)
    }


def test_encoders_that_agree(bpe_path: str):
    assert compared(bpe_path, GPT2) == set()


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        (
            "a digit",
            GPT2.replace(r"\p{N}+", r"[\p{N}&&[^²]]+").replace(
                r"[^\s\p{L}\p{N}]+", r"(?:[^\s\p{L}\p{N}]|²)+"
            ),
        ),
        ("letters", GPT2.replace(r"\p{L}+", r"[\p{L}&&[^ÀÁ]]+")),
        ("punctuation", GPT2.replace(r"\p{L}+", r"[\p{L}«]+").replace(r"[^\s", r"[^\s«")),
        ("a space", GPT2.replace(r"[^\s\p{L}\p{N}]+", r"(?:[^\s\p{L}\p{N}]|\u00a0)+")),
    ],
)
def test_a_code_point_of_another_class_is_found(bpe_path: str, name: str, instead: str):
    wanted = {"a digit": "²", "letters": "ÀÁ", "punctuation": "«", "a space": "\u00a0"}[name]
    assert compared(bpe_path, instead) == set(map(ord, wanted))


def test_the_tokenizers_own_ids_would_not_show_it(bpe_path: str):
    """What the probe is for: no token of this tokenizer reaches across the cut."""
    one, other = (
        encode_with(rules(bpe_path, r)) for r in (GPT2, GPT2.replace(r"\p{L}+", r"[\p{L}«]+"))
    )
    assert one(["a«a", "«", "!«!"]) == other(["a«a", "«", "!«!"])


@given(st.sets(st.integers(0, 40)), st.booleans())
def test_ranges_are_the_points(points: set[int], surrogates: bool):
    def flip(texts: Sequence[str]) -> list[bytes]:
        return [bytes([any(ord(c) - 0x2500 in points for c in t)]) for t in texts]

    def same(texts: Sequence[str]) -> list[bytes]:
        return [b"\0"] * len(texts)

    among = [*range(0x2500, 0x2600), *(range(0xD7FF, 0xE001) if surrogates else ())]
    ranges = differing_code_points((flip, same), (same, same), among)
    table = table_of(ranges)
    assert table.shape == (ALL_POINTS,)
    assert set(table.nonzero()[0].tolist()) == {0x2500 + p for p in points}
    assert all(a < b for a, b in ranges)


def test_a_difference_that_no_single_code_point_shows_takes_them_all():
    def pairs(texts: Sequence[str]) -> list[bytes]:
        return [bytes(["\u2501" in t and "\u2502" in t]) for t in texts]

    def same(texts: Sequence[str]) -> list[bytes]:
        return [b"\0"] * len(texts)

    assert differing_code_points((pairs, same), (same, same), range(0x2500, 0x2510)) == (
        (0x2500, 0x2510),
    )


def test_the_answer_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    digest = digest_of(b"{}", "one 1.0")
    calls = list[int]()
    assert digest != digest_of(b"{}", "one 1.1") != digest_of(b"{ }", "one 1.1")

    def compute() -> code_points.Ranges:
        calls.append(1)
        return ((5, 7), (9, 10))

    for expected in (1, 1):
        assert known_or_computed(digest, compute) == ((5, 7), (9, 10))
        assert len(calls) == expected
    (kept,) = (tmp_path / "cache" / "headrace").iterdir()
    for damage in ("", "{}", kept.read_text().replace("7", "8")):
        kept.write_text(damage)
        assert known_or_computed(digest, compute) == ((5, 7), (9, 10))
    assert len(calls) == 4
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept))  # a file: nothing can be kept there
    assert known_or_computed(digest, compute) == ((5, 7), (9, 10))


def test_byte_names_are_those_of_byte_level_vocabularies():
    from tokenizers import pre_tokenizers

    assert sorted(byte_names()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert len(set(byte_names())) == 256


@pytest.mark.slow
def test_all_code_points_of_the_real_libraries(
    bpe_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Those that differ are younger than the Unicode of one library, and so
    unassigned in Python's.
    """
    from headrace.ingest.gigatoken_encoder import code_points_of
    from headrace.ingest.tokenize import FileTokenizer

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tokenizer = FileTokenizer(Path(bpe_path).read_bytes(), bpe_path, eos="</s>")
    table = table_of(code_points_of(tokenizer))
    assert 1000 < table.sum() < 50_000
    assert {unicodedata.category(chr(p)) for p in table.nonzero()[0].tolist()} == {"Cn"}
