"""Ledgers: the same ledger is the same bytes, and anything that is none says so."""

import json
from importlib.metadata import version

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.errors import CacheCorruptError, CacheError
from headrace.store import CacheLayout
from headrace.store.ledger import (
    Ledger,
    canonical_tokenizer,
    fingerprint_of,
    part_folder,
    read_ledger,
    read_part_record,
    tokenizer_content,
    write_ledger,
    write_part_record,
)
from headrace.store.ledger_table import LeafRecord, PartRecord

LEDGER = Ledger(
    False,
    {"vocab_size": 10, "fingerprint": "f", "eos": "Ω"},
    CacheLayout().to_dict(),
    [{"name": "a"}],
)
PART = PartRecord("00000", 3, 40, "sha256:0", {"skipped_lines": 1})


def test_ledgers_read_back(tmp_path):
    assert read_ledger(str(tmp_path)) is None
    write_ledger(str(tmp_path), LEDGER)
    assert read_ledger(str(tmp_path)) == LEDGER
    done = LEDGER.complete([PART], seconds=3)
    assert (done.finished, done.parts, done.metadata) == (True, [PART], {"seconds": 3})
    write_ledger(str(tmp_path), done)
    first = (tmp_path / "ledger.json").read_bytes()
    assert read_ledger(str(tmp_path)) == done
    write_ledger(str(tmp_path), LEDGER.complete([PART], seconds=3))
    assert (tmp_path / "ledger.json").read_bytes() == first


@pytest.mark.parametrize("part", [PART, replace(PART, leaves={"mask": LeafRecord(7, "sha256:1")})])
def test_part_records_read_back(tmp_path, part):
    (tmp_path / "parts").mkdir()  # as the arrays of a part make it
    assert read_part_record(str(tmp_path), "00000") is None
    write_part_record(str(tmp_path), part)
    assert read_part_record(str(tmp_path), "00000") == part
    write_ledger(str(tmp_path), LEDGER.complete([part]))
    ledger = read_ledger(str(tmp_path))
    assert ledger is not None
    assert ledger.parts == [part]


def test_ledgers_say_which_release_began_them(tmp_path):
    write_ledger(str(tmp_path), LEDGER)
    path = tmp_path / "ledger.json"
    data = json.loads(path.read_text())
    assert data["code_version"] == version("headrace")
    write_ledger(str(tmp_path), replace(LEDGER, code_version="0.0.7"))
    assert read_ledger(str(tmp_path)).code_version == "0.0.7"


def test_a_ledger_without_its_digest_is_refused(tmp_path):
    write_ledger(str(tmp_path), LEDGER)
    path = tmp_path / "ledger.json"
    data = json.loads(path.read_text())
    del data["digest"]
    path.write_text(json.dumps(data))
    with pytest.raises(CacheCorruptError, match="digest"):
        read_ledger(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not JSON"),
        ("[1, 2]", "is not a ledger"),
        ("{}", "its format is None"),
        (
            json.dumps({"format_version": 99}),
            "another version of headrace: its format is 99, and this one reads 1",
        ),
        (json.dumps({"format_version": 1}), "is not a ledger"),
        (json.dumps({"format_version": 1, "parts": [{"nom": 1}]}), "is not a ledger"),
        (json.dumps({"format_version": 1, "parts": [], "more": 1}), "is not a ledger"),
    ],
)
def test_what_is_no_ledger(tmp_path, content, problem):
    (tmp_path / "ledger.json").write_text(content)
    with pytest.raises(CacheCorruptError, match=problem) as caught:
        read_ledger(str(tmp_path))
    assert "ledger.json" in str(caught.value)
    assert caught.value.cure


def test_what_is_no_part_record(tmp_path):
    (tmp_path / "parts" / "7").mkdir(parents=True)
    (tmp_path / "parts" / "7" / "part.json").write_text('{"name": "7"}')
    with pytest.raises(CacheCorruptError, match="is not a part's record"):
        read_part_record(str(tmp_path), "7")


def test_a_ledger_that_cannot_be_read_is_not_a_missing_one(tmp_path):
    (tmp_path / "ledger.json").mkdir()
    with pytest.raises(CacheError, match="cannot be read"):
        read_ledger(str(tmp_path))


@given(data=st.data())
def test_a_flipped_bit_is_noticed(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("cache")
    write_ledger(str(root), LEDGER.complete([PART, replace(PART, name="00001")], text="Ω"))
    raw = bytearray((root / "ledger.json").read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (root / "ledger.json").write_bytes(raw)
    with pytest.raises(CacheCorruptError):
        read_ledger(str(root))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"parts": [{"name": "../../else", "documents": 1, "tokens": 1, "digest": ""}]},
            "parts.*name",
        ),
        ({"parts": [{"name": "a/b", "documents": 1, "tokens": 1, "digest": ""}]}, "parts.*name"),
        (
            {"parts": [{"name": "0", "documents": -1, "tokens": 1, "digest": ""}]},
            "parts.*documents",
        ),
        (
            {"parts": [{"name": "0", "documents": 1e300, "tokens": 1, "digest": ""}]},
            "parts.*documents",
        ),
        ({"parts": [{"name": "0", "documents": 1, "tokens": True, "digest": ""}]}, "parts.*tokens"),
        (
            {"parts": [{"name": "0", "documents": 1, "tokens": 2**60, "digest": ""}]},
            "parts.*tokens",
        ),
        ({"parts": [{"name": "0", "documents": 1, "tokens": 1, "digest": None}]}, "parts.*digest"),
        ({"parts": [None]}, "parts"),
        ({"finished": "yes"}, "finished"),
        ({"metadata": 7}, "metadata"),
    ],
)
def test_what_a_ledger_says_is_not_trusted(tmp_path, change, problem):
    data = {**msgspec.to_builtins(LEDGER), "digest": "", **change}
    (tmp_path / "ledger.json").write_text(json.dumps(data))
    with pytest.raises(CacheCorruptError, match=f"is not a ledger .*{problem}"):
        read_ledger(str(tmp_path))


def test_a_ledger_nested_without_end(tmp_path):
    (tmp_path / "ledger.json").write_text('{"metadata": {"a": ' + "[" * 100_000)
    with pytest.raises(CacheCorruptError):
        read_ledger(str(tmp_path))


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "", "/etc", "a\n"])
def test_no_part_lies_outside_its_cache(tmp_path, name):
    with pytest.raises(CacheCorruptError, match="no folder's name"):
        part_folder(str(tmp_path), name)


TOKENIZER = {"model": {"vocab": {"a": 0}}, "truncation": {"max_length": 8}, "padding": None}


def tokenizer_name(content, bos=None, eos=1):
    return fingerprint_of(canonical_tokenizer(tokenizer_content(content)), bos, eos)


def test_tokenizers_are_named_by_their_content():
    written = json.dumps(TOKENIZER).encode()
    assert tokenizer_name(written) == tokenizer_name(
        json.dumps(TOKENIZER, indent=2, sort_keys=True).encode()
    )
    assert tokenizer_name(written) == tokenizer_name(
        json.dumps({**TOKENIZER, "truncation": None}).encode()
    )
    others = [
        tokenizer_name(written.replace(b'"a"', b'"b"')),
        tokenizer_name(written, bos=0),
        tokenizer_name(written, eos=None),
    ]
    assert len({tokenizer_name(written), *others}) == 4


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"null", b"\xff"])
def test_what_is_no_tokenizer(content):
    with pytest.raises(ValueError):
        tokenizer_name(content)
