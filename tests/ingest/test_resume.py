"""May a build go on: every setting that decides a byte is compared, each difference is named,
nothing else matters.
"""

import shlex
from typing import Any

import fsspec
import pytest
from msgspec.structs import replace

from headrace.errors import PlanMismatchError, SourceError
from headrace.ingest.resume import changed_sources, check_same_build, differences
from headrace.store.ledger import Ledger
from headrace.store.ledger_table import PartRecord

TOKENIZER = {
    "path": "tok.json",
    "file": "tokenizer.json",
    "fingerprint": "sha256:1",
    "vocab_size": 400,
    "bos": None,
    "bos_id": None,
    "eos": "</s>",
    "eos_id": 2,
}
SOURCE = {
    "format": "auto",
    "text_field": "text",
    "on_bad_line": "error",
    "extensions": [],
    "fields": {},
    "leaves": {},
}
BEGUN = Ledger(
    finished=False,
    tokenizer=TOKENIZER,
    layout={"dtype": "uint16", "chunk_elements": 64, "shard_chunks": 2, "compression": "none"},
    sources=[
        {"path": f"{n}.jsonl", "size": 10, "version": "mtime:1", "part": f"0000{i // 2}"}
        for i, n in enumerate("abcde")
    ],
    metadata={"paths": ["."], "source": SOURCE, "part_bytes": 100, "ingest_version": 1},
)


def with_(part: str, **changes: Any) -> Ledger:
    return replace(BEGUN, **{part: {**getattr(BEGUN, part), **changes}})


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            with_("tokenizer", fingerprint="sha256:2"),
            r"tokenizer 'tok.json' there, 'tok.json' now \(their contents",
        ),
        (with_("tokenizer", fingerprint="x", path="b"), "tokenizer 'tok.json' there, 'b' now"),
        (with_("tokenizer", fingerprint="x", eos=None, eos_id=None), "eos '</s>' there, none now"),
        (with_("tokenizer", fingerprint="x", bos="<s>"), "bos none there, '<s>' now"),
        (with_("layout", dtype="uint32"), "dtype 'uint16' there, 'uint32' now"),
        (with_("layout", chunk_elements=128), "chunk_elements 64 there, 128 now"),
        (with_("layout", compression="zstd"), "compression 'none' there, 'zstd' now"),
        (
            with_("metadata", source={**SOURCE, "text_field": "body"}),
            "text_field 'text' there, 'body' now",
        ),
        (
            with_("metadata", source={**SOURCE, "max_record_bytes": 5}),
            "max_record_bytes none there, 5 now",
        ),
        (
            with_("metadata", source={**SOURCE, "special_tokens_in_text": "error"}),
            "special_tokens_in_text none there, 'error' now",
        ),
        (with_("metadata", source={**SOURCE, "format": "text"}), "format 'auto' there, 'text' now"),
        (with_("metadata", part_bytes=5), "part_bytes 100 there, 5 now"),
        (with_("metadata", ingest_version=2), "ingest_version 1 there, 2 now"),
        (replace(BEGUN, sources=BEGUN.sources[1:]), r"1 source file missing \(a.jsonl\)"),
        (
            replace(BEGUN, sources=[*BEGUN.sources, {"path": "f.jsonl"}]),
            r"1 source file added \(f.jsonl\)",
        ),
        (
            replace(BEGUN, sources=[]),
            r"5 source files missing \(a.jsonl, b.jsonl, c.jsonl, d.jsonl and 1 more\)",
        ),
    ],
)
def test_a_difference_is_named(wanted: Ledger, message: str):
    with pytest.raises(PlanMismatchError, match=message) as caught:
        check_same_build("out", BEGUN, wanted, [])
    assert "--restart" in str(caught.value)
    assert len(differences(BEGUN, wanted)) == 1


@pytest.mark.parametrize(
    ("begun", "wanted"),
    [
        ({"on_bad_line": "error"}, {"on_bad_line": "skip"}),
        ({"max_record_bytes": 5}, {"max_record_bytes": 6}),
        ({"max_record_bytes": 5}, {}),
        ({"special_tokens_in_text": "error"}, {"special_tokens_in_text": "text"}),
        ({"special_tokens_in_text": "error"}, {}),
    ],
)
def test_parts_without_a_bad_line_are_kept_under_wider_rules(
    begun: dict[str, Any], wanted: dict[str, Any]
):
    before, after = (
        with_("metadata", source={**SOURCE, "on_bad_line": "skip", **rules})
        for rules in (begun, wanted)
    )
    whole = PartRecord("00000", 1, 1, "", {"skipped_lines": 0})
    check_same_build("out", before, after, [whole])
    lacking = PartRecord("00001", 1, 1, "", {"skipped_lines": 2, "first_skipped": "a, line 3"})
    if "on_bad_line" not in begun:
        with pytest.raises(PlanMismatchError, match=next(iter(begun))):
            check_same_build("out", before, after, [whole, lacking])


def test_what_decides_nothing_may_differ():
    for wanted in (
        BEGUN,
        with_("tokenizer", path="elsewhere/tok.json"),
        with_("metadata", paths=["a.jsonl", "b.jsonl", "c.jsonl"]),
        replace(
            BEGUN,
            sources=[
                {**s, "size": 99, "version": "mtime:2", "part": "00000"} for s in BEGUN.sources
            ],
        ),
    ):
        check_same_build("out", BEGUN, wanted, [])


def touched(*paths: str) -> list[dict[str, Any]]:
    return [
        {**s, "version": "mtime:2", "part": "00000"} if s["path"] in paths else s
        for s in BEGUN.sources
    ]


def test_files_that_changed_before_their_part_was_built_are_taken_as_they_are():
    assert changed_sources("out", BEGUN.sources, BEGUN.sources, {"00000", "00001"}) == BEGUN.sources
    updated = changed_sources("out", BEGUN.sources, touched("e.jsonl"), {"00000", "00001"})
    assert updated[:4] == BEGUN.sources[:4]
    assert updated[4] == {**BEGUN.sources[4], "version": "mtime:2"}  # in the part that it was in


def test_files_that_changed_after_it_are_refused():
    with pytest.raises(
        SourceError,
        match=r"a.jsonl, c.jsonl: changed after.*after: rm -r out/parts/00000 out/parts/00001$",
    ):
        changed_sources(
            "out", BEGUN.sources, touched("a.jsonl", "c.jsonl", "e.jsonl"), {"00000", "00001"}
        )


def test_in_a_bucket_the_command_deletes_these_parts_only():
    store = fsspec.filesystem("memory")
    for number in range(8):
        store.pipe(f"/out/parts/0000{number}/part.json", b"{}")
    with pytest.raises(SourceError) as caught:
        changed_sources(
            "memory://out",
            BEGUN.sources,
            touched(*(f"{n}.jsonl" for n in "abe")),
            {"00000", "00002"},
        )
    _, _, program = shlex.split(str(caught.value.cure).rpartition("after: ")[2])
    exec(program, {})
    left = {path.split("/")[3] for path in store.find("/out")}
    assert left == {f"0000{number}" for number in range(8)} - {"00000", "00002"}
