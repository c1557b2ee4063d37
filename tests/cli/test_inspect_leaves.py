"""``headrace cache inspect``: masks, ids, other leaves, frequencies of tokens, caches of
Levanter.
"""

import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from rich.console import Console

from headrace.cli import decoded, inspect_show
from headrace.cli.decoded import documents_with_ids, sample
from headrace.cli.inspect_show import length_statistics, show_samples, token_statistics
from headrace.data import document_numbers
from headrace.data.document_numbers import evenly_spaced
from headrace.errors import ConfigError
from headrace.ingest import ChatConfig, LeafConfig, SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.tokenize import cache_tokenizer, decode, load_tokenizer
from headrace.order.intervals import starts
from headrace.store import open_cache
from headrace.store.array import StoredArray
from headrace.store.ledger import read_ledger, write_ledger
from headrace.testing import tiny_cache, write_cache
from headrace_levanter.export import write_levanter

Run = Callable[..., tuple[int, str, str]]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{"
    " m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
)


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Conversations with masks, ids, numbers and lists; two of them have the same id."""
    folder = tmp_path_factory.mktemp("chats")
    records = [
        {
            "messages": [
                {"role": "user", "content": f"{i}?"},
                {"role": "assistant", "content": f"{i}, é {'!' * i}"},
            ],
            "id": f"chat-{i % 29}",
            "score": i / 2,
            "scores": list(range(i)),
        }
        for i in range(30)
    ]
    for name, some in (("a", records[:12]), ("b", records[12:])):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, some)))
    leaves = {
        "id": LeafConfig("id"),
        "score": LeafConfig("score", "float32"),
        "scores": LeafConfig("scores", "int16", "ragged"),
    }
    source = SourceConfig(
        [str(folder / "*.jsonl")], kind="chat", leaves=leaves, chat=ChatConfig(TEMPLATE)
    )
    build_cache(
        source,
        TokenizerConfig(),
        str(folder / "cache"),
        part_bytes=500,
        chunk_tokens=64,
        progress=False,
    )
    return str(folder / "cache")


def test_what_is_trained_on_is_marked(headrace: Run, chats: str):
    code, out, err = headrace("cache", "inspect", chats, "--document", "4")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "⟦trained on⟧, not trained on",
        "document 4: 29 tokens, 10 trained on " + "─" * 83,
        "id: chat-4  score: 2.0  scores: [0, 1, 2, 3]",
        "<user>4?<assistant>⟦4, é !!!!⟧",
    ]
    long = headrace("cache", "inspect", chats, "--document", "20")[1]
    assert "scores: [0, 1, 2, 3, 4, 5, 6, 7, ... 20 in all]" in long


def test_on_a_terminal_colours_stand_for_marks(chats: str):
    cache = open_cache(chats)
    for width in (30, 120):
        written = io.StringIO()
        terminal = Console(file=written, force_terminal=True, color_system="truecolor", width=width)
        show_samples(terminal, [sample(cache, cache_tokenizer(cache), 4)])
        out = written.getvalue()
        assert "\x1b[1;92m4, é !!!!\x1b[0m" in out
        assert "⟦" not in out
    written = io.StringIO()
    plain = Console(file=written, force_terminal=True, no_color=True, width=80)
    show_samples(plain, [sample(cache, cache_tokenizer(cache), 4)])
    assert "⟦4, é !!!!⟧" in written.getvalue()


def test_runs_are_the_text(chats: str):
    cache = open_cache(chats)
    for i in range(cache.num_documents):
        one = sample(cache, cache_tokenizer(cache), i)
        assert "".join(text for text, _ in one.runs) == one.text
        trained = "".join(text for text, is_trained in one.runs if is_trained)
        assert trained == f"{i}, é {'!' * i}"
        assert one.trained_tokens == len(trained.encode())


@pytest.mark.parametrize(("trains_end", "marked"), [(1, "⟦yo{}⟧"), (0, "⟦yo⟧{}")])
def test_the_mask_says_whether_an_end_token_is_trained_on(
    headrace: Run, tmp_path: Path, trains_end: int, marked: str
):
    end_id = load_tokenizer(TokenizerConfig("bytes")).eos_id
    assert end_id is not None
    ids = np.array([*b"yo", end_id])
    mask = np.array([1, 1, trains_end])
    write_cache(tmp_path / "c", [[ids]], vocab_size=512, mask=lambda tokens: mask)
    (tmp_path / "run.yaml").write_text(
        "seq_len: 3\nbatch_size: 1\nnum_steps: 1\n"
        f"components:\n  c: {{cache: {tmp_path}/c, shuffle: false}}\n"
    )
    end = decode(load_tokenizer(TokenizerConfig("bytes")), ids[2:])
    assert end
    bytes_ids = ("--tokenizer", "bytes")
    inspected = headrace("cache", "inspect", str(tmp_path / "c"), "--document", "0", *bytes_ids)
    assert inspected[1].splitlines()[-1] == marked.format(end)
    shown = headrace("run", "cat", str(tmp_path / "run.yaml"), "--row", "0", *bytes_ids)
    assert shown[1].splitlines()[-1] == marked.format(end)


def test_a_long_document_keeps_its_marks(tmp_path: Path):
    turns = [{"role": r, "content": r[0] * 300} for r in ("user", "assistant")]
    (tmp_path / "c.jsonl").write_text(json.dumps({"messages": turns}))
    source = SourceConfig([str(tmp_path / "c.jsonl")], kind="chat", chat=ChatConfig(TEMPLATE))
    build_cache(source, TokenizerConfig(), str(tmp_path / "c"), progress=False)
    cache = open_cache(tmp_path / "c")
    one = sample(cache, cache_tokenizer(cache), 0)
    assert one.runs == [(one.text, False)]
    assert one.tail_runs == [("a" * 40, True)]
    assert one.left_out == one.tokens - 280


def test_overview_names_leaves_and_parts(headrace: Run, chats: str):
    out = headrace("cache", "inspect", chats, "--samples", "0")[1]
    opened = open_cache(chats)
    sizes = [p.tokens for p in opened.ledger.parts]
    assert len(sizes) > 1
    assert f"{len(sizes)}, from 2 files with" in out
    assert f"({min(sizes):,} to {max(sizes):,} tokens each)" in out
    assert f"loss_mask (uint8, {opened.num_tokens:,} values)" in out
    assert "score (float32, one per document)" in out
    facts = json.loads(headrace("cache", "inspect", chats, "--json")[1])
    assert [p["tokens"] for p in facts["part_sizes"]] == sizes
    assert {leaf["name"] for leaf in facts["leaves"]} == {"loss_mask", "id", "score", "scores"}
    assert facts["source_bytes"] == sum(
        p.stat().st_size for p in Path(chats).parent.glob("*.jsonl")
    )
    assert facts["token_frequencies"]["tokens"] == opened.num_tokens


def test_search_by_id(headrace: Run, chats: str):
    code, out, err = headrace("cache", "inspect", chats, "--id", "chat-7")
    assert (code, err) == (0, "")
    assert "document 7:" in out
    assert out.count("document ") == 1
    found = json.loads(headrace("cache", "inspect", chats, "--id", "chat-0", "--json")[1])
    assert found["documents_with_id"] == [0, 29]
    assert [s["leaves"]["id"] for s in found["samples"]] == ["chat-0", "chat-0"]
    assert json.loads(
        headrace("cache", "inspect", chats, "--id", "3.5", "--id-leaf", "score", "--json")[1]
    )["documents_with_id"] == [7]


def test_searches_that_find_nothing_say_why(headrace: Run, chats: str, tmp_path: Path):
    tiny_cache(tmp_path / "ids", documents=5)
    for arguments, words in (
        ([chats, "--id", "chat-"], "no document of"),
        ([chats, "--id", "x", "--id-leaf", "score"], "The leaf 'score' holds numbers (float32)."),
        ([chats, "--id", "1", "--id-leaf", "scores"], "holds lists of numbers, not ids"),
        ([chats, "--id", "x", "--id-leaf", "url"], "its leaves are id, loss_mask, score, scores"),
        ([str(tmp_path / "ids"), "--id", "x"], "has no leaf of this name to find ids in"),
        ([chats, "--id", "x", "--document", "1"], "cannot be combined with --document"),
    ):
        code, out, err = headrace("cache", "inspect", *arguments)
        assert (code, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1


@settings(max_examples=40)
@given(
    ids=st.lists(st.text(alphabet="aé0", max_size=10), min_size=1, max_size=40),
    wanted=st.sets(st.text(alphabet="aé0", max_size=4), min_size=1, max_size=5),
    documents=st.sampled_from([1, 3, 100]),
    values=st.sampled_from([1, 5, 1000]),
)
def test_search_finds_all_and_no_others(ids, wanted, documents, values):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoded, "_DOCUMENTS", documents)
        patch.setattr(decoded, "_VALUES", values)
        looked: list[int] = []
        found = documents_with_ids(_HasIds(ids), wanted, "id", looked.append)
    positions = {one: [k for k, text in enumerate(ids) if text == one] for one in wanted}
    assert found == {one: some for one, some in positions.items() if some}
    assert sum(looked) == len(ids)


class _HasIds:
    """A cache with a leaf of ids, in memory."""

    path = "memory"
    leaves = ("id",)
    kind = "ragged"
    dtype = np.dtype("uint8")

    def __init__(self, ids: list[str]) -> None:
        self.ids = [np.frombuffer(text.encode(), np.uint8) for text in ids]
        self.num_documents = self.num_originals = len(ids)

    def originals(self, positions: list[int]) -> list[int]:
        return positions

    def leaf(self, name: str):
        assert name == "id"
        return self

    def lengths(self, start: int, stop: int) -> np.ndarray:
        return np.array([i.size for i in self.ids[start:stop]], np.int64)

    def values(self, start: int, stop: int) -> np.ndarray:
        return np.concatenate(self.ids[start:stop])


def test_tokens_are_counted(headrace: Run, tmp_path: Path):
    rng = np.random.default_rng(0)
    documents = [np.minimum(rng.geometric(0.05, n), 99) for n in rng.integers(0, 50, 40)]
    cache = write_cache(tmp_path / "c", [documents[:30], documents[30:]], vocab_size=100)
    found = token_statistics(cache, None)
    counted = Counter(np.concatenate(documents).tolist())
    most = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:10]
    assert [(i, times) for i, _, times in found.most_frequent] == most
    assert (found.tokens, found.of) == (cache.num_tokens, cache.num_tokens)
    assert (found.distinct, found.never_seen, found.outside) == (
        len(counted),
        100 - len(counted),
        0,
    )
    out = headrace("cache", "inspect", str(tmp_path / "c"))[1]
    assert (
        f"{len(counted)} of the vocabulary's 100 occur ({len(counted):.1f}%), {100 - len(counted)}"
        " never" in out
    )


def test_ids_outside_the_vocabulary_are_said(headrace: Run, tmp_path: Path):
    path = tmp_path / "c"
    write_cache(path, [[np.array([1, 2, 250, 250])]], vocab_size=256)
    ledger = read_ledger(str(path))
    write_ledger(str(path), structs.replace(ledger, tokenizer={"vocab_size": 10}))
    found = token_statistics(open_cache(path), None)
    assert (found.outside, found.never_seen, found.distinct) == (2, 8, 3)
    assert "2 tokens with ids outside the vocabulary" in headrace("cache", "inspect", str(path))[1]


def test_of_huge_caches_a_sample_is_taken_and_said(
    headrace: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = tiny_cache(tmp_path / "c", documents=200, parts=3)
    monkeypatch.setattr(inspect_show, "MAX_COUNTED", 64)
    monkeypatch.setattr(inspect_show, "WINDOWS", 8)
    found = token_statistics(cache, None)
    lengths = length_statistics(cache)
    assert (found.tokens, found.of, lengths.documents, lengths.of) == (
        64,
        cache.num_tokens,
        64,
        200,
    )
    out = headrace("cache", "inspect", str(tmp_path / "c"))[1]
    assert "of a sample of 64 tokens" in out
    assert "of a sample of 64 documents" in out


@given(
    st.lists(st.integers(0, 9) | st.integers(50, 90), max_size=150),
    st.integers(4, 2000),
    st.integers(1, 4),
)
def test_a_sample_is_read_from_few_parts(sizes, most, stretches):
    first_of_part = starts(sizes)
    values = np.arange(first_of_part[-1])
    part_of = np.repeat(np.arange(len(sizes)), sizes)

    def read(start: int, stop: int) -> np.ndarray:
        return values[start:stop]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_numbers, "_MOST_PARTS", 8)
        sample = evenly_spaced(read, first_of_part, most, stretches)
    if values.size <= most and np.count_nonzero(sizes) <= 8 and len(sizes) <= 8:
        assert sample.size == values.size
    assert np.all(np.diff(sample) > 0)
    assert min(values.size, stretches) <= sample.size <= most
    assert np.unique(part_of[sample]).size <= 8


@pytest.mark.parametrize("large", [0, 700, 1500])
def test_a_sample_has_large_parts_at_their_share(large):
    """Of a cache with small parts and a large one, which has half of its values."""
    sizes = np.random.default_rng(large).integers(1, 10, 1500).tolist()
    sizes.insert(large, sum(sizes))
    is_in_large = np.repeat(np.arange(len(sizes)) == large, sizes)
    sample = evenly_spaced(lambda start, stop: is_in_large[start:stop], starts(sizes), 1 << 22, 64)
    assert abs(sample.mean() - 0.5) < 0.05


def test_a_cache_of_many_parts_is_not_opened_part_by_part(
    headrace: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tiny_cache(tmp_path / "c", documents=300, parts=100)
    monkeypatch.setattr(document_numbers, "_MOST_PARTS", 8)
    monkeypatch.setattr(inspect_show, "WINDOWS", 4)
    opened: set[str] = set()
    open_array = StoredArray._open

    def count(array: StoredArray, *arguments: Any) -> Any:
        opened.add(array.url)
        return open_array(array, *arguments)

    monkeypatch.setattr(StoredArray, "_open", count)
    code, out, _ = headrace("cache", "inspect", str(tmp_path / "c"), "--samples", "0")
    assert code == 0
    assert "of a sample of" in out
    assert 8 <= len(opened) <= 2 * 8


def test_a_cache_of_levanter(headrace: Run, chats: str, tmp_path: Path):
    write_levanter(open_cache(chats), str(tmp_path / "theirs" / "train"))
    path = str(tmp_path / "theirs" / "train")
    code, out, err = headrace("cache", "inspect", path, "--tokenizer", "bytes", "--document", "4")
    assert (code, err) == (0, "")
    assert "⟦4, é !!!!⟧" in out
    assert json.loads(headrace("cache", "inspect", path, "--json")[1])["documents"] == 30
    assert "tokens by frequency" in headrace("cache", "inspect", path)[1]


def test_an_empty_document_and_an_empty_cache(headrace: Run, tmp_path: Path):
    write_cache(tmp_path / "c", [[np.zeros(0, int)], []])
    assert headrace("cache", "inspect", str(tmp_path / "c"))[0] == 0
    write_cache(tmp_path / "none", [[]])
    assert headrace("cache", "inspect", str(tmp_path / "none"))[0] == 0
    assert (
        json.loads(headrace("cache", "inspect", str(tmp_path / "none"), "--json")[1])["documents"]
        == 0
    )


def test_a_leaf_that_no_id_can_be_in():
    with pytest.raises(ConfigError, match="no leaf of this name"):
        documents_with_ids(tiny_cache(documents=3), ["x"], "id")


def test_the_padding_of_packs_has_no_id(headrace: Run, tmp_path: Path):
    lines = [json.dumps({"text": "x" * (3 + i % 17), "n": i}) for i in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    cache, packed = f"{tmp_path}/c", f"{tmp_path}/packed"
    leaf = ("--leaf", "n=n:int32")
    assert headrace("build", f"{tmp_path}/a.jsonl", "-o", cache, "-t", "bytes", *leaf)[0] == 0
    assert headrace("cache", "reshuffle", cache, packed, "--pack", "64")[0] == 0
    for number in (0, 7):
        id_ = ("--id", str(number), "--id-leaf", "n", "--json")
        facts = json.loads(headrace("cache", "inspect", packed, *id_)[1])
        assert facts["documents_with_id"] == [number]
