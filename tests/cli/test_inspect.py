"""``headrace cache inspect``: true numbers, decoded samples, and what to do with an unfinished
cache.
"""

import json
import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli import inspect_show
from headrace.cli.decoded import drawn
from headrace.cli.inspect_show import histogram, length_statistics
from headrace.cli.shown import printable
from headrace.errors import SourceError
from headrace.ingest import SourceConfig, TokenizerConfig, build, build_cache
from headrace.order.intervals import Intervals
from headrace.store import open_cache
from headrace.testing import tiny_cache, web_server

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cache(corpus: Path, tmp_path: Path) -> str:
    config = SourceConfig([str(corpus)])
    build_cache(
        config, TokenizerConfig(bos="auto"), str(tmp_path / "cache"), part_bytes=100, progress=False
    )
    return str(tmp_path / "cache")


@given(lengths=st.lists(st.one_of(st.integers(0, 40), st.integers(0, 1 << 40)), min_size=1))
def test_the_histogram_counts_everything_once(lengths: list[int]):
    bins = histogram(np.array(lengths, np.int64))
    assert sum(documents for _, _, documents, _ in bins) == len(lengths)
    assert sum(tokens for *_, tokens in bins) == sum(lengths)
    for first, last, documents, tokens in bins:
        inside = [n for n in lengths if first <= n <= last]
        assert (documents, tokens) == (len(inside), sum(inside))
    assert all(a[1] + 1 == b[0] for a, b in pairwise(bins))
    assert bins[0][2] > 0
    assert bins[-1][2] > 0


@given(documents=st.integers(0, 50), count=st.integers(0, 60), seed=st.integers(0, 5))
def test_drawn_documents_are_distinct_and_repeatable(documents: int, count: int, seed: int):
    chosen = drawn(Intervals.empty().complement(documents), count, seed)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(documents, count)
    assert all(0 <= i < documents for i in chosen)
    assert drawn(Intervals.empty().complement(documents), count, seed) == chosen


def test_other_seeds_draw_other_documents():
    assert (
        len({tuple(drawn(Intervals.empty().complement(10_000), 3, seed)) for seed in range(20)})
        == 20
    )


def test_a_finished_cache(headrace: Run, cache: str):
    code, out, err = headrace("cache", "inspect", cache)
    assert (code, err) == (0, "")
    opened = open_cache(cache)
    for words in (
        "documents  15 (3 without text)",
        f"tokens     {opened.num_tokens:,}",
        "uint16, chunks of 65,536 tokens, compression none",
        "bytes, vocabulary 258, bos <bos> (257), eos <eos> (256)",
        f"{len(opened.parts)}, from 3 files with",
        "min 2  p5 2",
        "max 58",
        "32 - 63",
    ):
        assert words in out
    assert (
        out.count("<bos>file") + out.count("<bos><eos>") == 3
    )  # the samples, with their boundaries


def test_samples_follow_the_seed(headrace: Run, cache: str):
    first = headrace("cache", "inspect", cache, "--seed", "1", "--samples", "4")
    assert first == headrace("cache", "inspect", cache, "--seed", "1", "--samples", "4")
    assert first != headrace("cache", "inspect", cache, "--seed", "2", "--samples", "4")
    assert "document " not in headrace("cache", "inspect", cache, "--samples", "0")[1]


def test_one_document_whole(headrace: Run, cache: str):
    code, out, _ = headrace("cache", "inspect", cache, "--document", "4")
    assert code == 0
    assert out.splitlines()[1] == "<bos>" + "file 0 line 4 " * 4 + "<eos>"
    for wrong in ("15", "-1"):
        code, _, err = headrace("cache", "inspect", cache, "--document", wrong)
        assert code == 2
        assert "numbered from 0 to 14" in err


def test_long_documents_show_both_ends(headrace: Run, tmp_path: Path):
    (tmp_path / "a.txt").write_text("begin" + "x" * 5000 + "end")
    build_cache(
        SourceConfig([str(tmp_path / "a.txt")]),
        TokenizerConfig(),
        str(tmp_path / "c"),
        progress=False,
    )
    out = headrace("cache", "inspect", str(tmp_path / "c"))[1]
    sample = out.splitlines()[-1]
    assert sample.startswith("beginx")
    assert sample.endswith("xend<eos>")
    assert " ... 4,728 tokens ... " in sample
    assert "..." not in headrace("cache", "inspect", str(tmp_path / "c"), "--document", "0")[1]


def test_documents_do_not_act_on_the_terminal(headrace: Run, tmp_path: Path):
    (tmp_path / "a.txt").write_text("[bold]not markup[/bold] \x1b[2J\x1b]0;title\x07 \u202edlrow")
    build_cache(
        SourceConfig([str(tmp_path / "a.txt")]),
        TokenizerConfig(),
        str(tmp_path / "c"),
        progress=False,
    )
    out = headrace("cache", "inspect", str(tmp_path / "c"))[1]
    assert "[bold]not markup[/bold] ␛[2J␛]0;title␇ �dlrow<eos>" in out
    assert "\x1b" not in out


@given(text=st.text())
def test_printable_changes_only_what_acts(text: str):
    shown = printable(text)
    assert len(shown) == len(text)
    assert all(a == b or not a.isprintable() for a, b in zip(text, shown, strict=True))
    assert not any(c < " " and c not in "\n\t" for c in shown)


def test_a_web_server_does_not_say_how_large_a_cache_is(headrace: Run, cache: str):
    with web_server(Path(cache).parent) as url:
        there = f"{url}/{Path(cache).name}"
        assert json.loads(headrace("cache", "inspect", there, "--json")[1])["bytes_on_disk"] is None
        assert "on disk" in (said := headrace("cache", "inspect", there)[1])
    assert "0 B" not in said


def test_json(headrace: Run, cache: str):
    opened = open_cache(cache)
    facts = json.loads(headrace("cache", "inspect", cache, "--json", "--samples", "2")[1])
    assert facts["finished"] is True
    assert (facts["documents"], facts["tokens"], facts["parts"]) == (
        15,
        opened.num_tokens,
        len(opened.parts),
    )
    assert facts["bytes_on_disk"] == sum(
        p.stat().st_size for p in Path(cache).rglob("*") if p.is_file()
    )
    assert facts["lengths"]["quantiles"]["max"] == int(opened.lengths().max())
    assert facts["lengths"]["mean"] == pytest.approx(opened.num_tokens / 15)
    assert sum(b[2] for b in facts["lengths"]["histogram"]) == 15
    assert len(facts["samples"]) == 2
    one = json.loads(headrace("cache", "inspect", cache, "--json", "--document", "3")[1])["samples"]
    assert [s["text"] for s in one] == ["file 0 line 3 " * 3]


def test_lengths_of_a_huge_cache_are_sampled(cache: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inspect_show, "MAX_COUNTED", 8)
    monkeypatch.setattr(inspect_show, "WINDOWS", 4)
    lengths = length_statistics(open_cache(cache))
    assert (lengths.documents, lengths.of) == (8, 15)


def test_an_unfinished_cache_says_how_to_finish_it(
    headrace: Run, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    good = (corpus / "2.jsonl").read_bytes()
    (corpus / "2.jsonl").write_bytes(good.replace(b'"text"', b'"txet"', 1))
    # The command line has no option for the size of parts.
    monkeypatch.setitem(build.plan_build.__kwdefaults__, "part_bytes", 10)
    config = SourceConfig(["corpus"], format="jsonl", extensions=[".jsonl"])
    with pytest.raises(SourceError):
        build_cache(
            config,
            TokenizerConfig(eos="none"),
            "my cache",
            chunk_tokens=16,
            compression="zstd",
            progress=False,
            first_look=False,
        )
    code, out, _ = headrace("cache", "inspect", "my cache")
    assert code == 0
    assert "is unfinished: 2 of 3 parts done, 10 documents" in out
    state = json.loads(headrace("cache", "inspect", "my cache", "--json")[1])
    assert state["command"] in out
    assert (state["finished"], state["parts"], state["parts_finished"], state["documents"]) == (
        False,
        3,
        2,
        10,
    )
    (corpus / "2.jsonl").write_bytes(good)
    words = shlex.split(state["command"])
    assert words[0] == "headrace"
    code, out, err = headrace(*words[1:])
    assert code == 0, err
    assert "2 were already there" in out


def test_nothing_there(headrace: Run, tmp_path: Path):
    code, out, err = headrace("cache", "inspect", str(tmp_path / "none"))
    assert (code, out) == (2, "")
    assert "is not a token cache" in err
    assert err.count("\n") == 1


def test_a_cache_of_ready_ids_has_no_tokenizer(headrace: Run, tmp_path: Path):
    opened = tiny_cache(tmp_path / "ids", documents=5)
    code, out, _ = headrace("cache", "inspect", str(tmp_path / "ids"), "--document", "2")
    assert code == 0
    assert out.splitlines()[1] == " ".join(map(str, opened.document(2).tolist()))
    assert headrace("cache", "inspect", str(tmp_path / "ids"))[0] == 0
