"""Rows that are divided into documents: the documents of the corpus, laid out by hand, are the
oracle.
"""

import json
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace import ComponentConfig, DataLoader, LmDataConfig, TokenSeqDataset
from headrace.cli import main
from headrace.data import MixtureDataset
from headrace.data.documents import DocumentFilter
from headrace.errors import ConfigError
from headrace.ingest import ChatConfig
from headrace.testing import write_cache
from headrace.testing.caches import random_documents
from headrace_levanter.export import write_levanter

SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
EOS = 9


def segments_by_hand(parts, removed, seq_len):
    """Tokens and segment numbers of all rows; documents are numbered over all parts."""
    tokens, segments = [], []
    number = 0
    for part in parts:
        stream, owner = [], []
        for document in part:
            if number not in removed:
                stream += document.tolist()
                owner += [number] * document.size
            number += 1
        for at in range(0, len(stream) - seq_len + 1, seq_len):
            of_row = owner[at : at + seq_len]
            tokens.append(stream[at : at + seq_len])
            segments.append(np.cumsum(np.diff(of_row, prepend=of_row[0]) != 0).tolist())
    return tokens, segments


def documents_of(rng, lengths):
    """Documents that contain the end-of-text token anywhere, and end with it by chance."""
    return [rng.integers(0, EOS + 1, n) for n in lengths]


@given(
    lengths=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=10), min_size=1, max_size=3),
    seq_len=st.integers(2, 21),
    removed=st.sets(st.integers(0, 29), max_size=6),
    has_end=st.booleans(),
    seed=st.integers(0, 99),
)
def test_segments_are_the_documents_of_the_cache(lengths, seq_len, removed, has_end, seed):
    rng = np.random.default_rng(seed)
    parts = [documents_of(rng, of_part) for of_part in lengths]
    removed = {number for number in removed if number < sum(map(len, parts))}
    tokens, segments = segments_by_hand(parts, removed, seq_len)
    if not tokens:
        return
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        cache = write_cache(root, parts, vocab_size=10, eos_id=EOS if has_end else None)
        dataset = TokenSeqDataset(
            cache, seq_len, split_documents=True, removed=DocumentFilter(sorted(removed))
        )
        batch = dataset.read(np.arange(len(dataset)))
        assert batch.tokens.tolist() == tokens
        assert batch.segment_ids.tolist() == segments
        one_device = jax.sharding.Mesh(jax.devices()[:1], ("data",))
        with DataLoader(dataset, len(dataset), mesh=one_device, row_order="stream") as loader:
            assert np.asarray(loader.batch_at(0).segment_ids).tolist() == segments


def test_labels_and_positions_end_with_a_document_that_no_token_ends(tmp_path):
    cache = write_cache(tmp_path, [[np.array([1, 2, 3]), np.array([4, 5, 6, 7, 8])]])
    batch = TokenSeqDataset(cache, 8, split_documents=True).read([0])
    assert batch.labels.tolist() == [[2, 3, 0, 5, 6, 7, 8, 0]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]]
    assert batch.token_weights.tolist() == [[1, 1, 0, 1, 1, 1, 1, 0]]
    assert batch.cu_seqlens.tolist() == [[0, 3, 8, 8, 8, 8, 8, 8, 8]]


def test_sources_with_and_without_an_end_of_text_are_mixed(tmp_path):
    rng = np.random.default_rng(0)
    caches = {
        name: write_cache(tmp_path / name, [documents_of(rng, [7] * 40)], vocab_size=10, eos_id=end)
        for name, end in (("a", EOS), ("b", None))
    }
    rows = {n: TokenSeqDataset(c, 16, split_documents=True) for n, c in caches.items()}
    mixture = MixtureDataset(rows, {"a": 1, "b": 1}, batch_size=4)
    batch = mixture.read(np.arange(12))
    for row, source, ids in zip(
        batch.tokens.tolist(), batch.source_id.tolist(), batch.segment_ids.tolist(), strict=True
    ):
        alone = [*rows.values()][source].read(np.arange(len(rows["a"])))
        assert ids == alone.segment_ids[alone.tokens.tolist().index(row)].tolist()
    whole = {**rows, "b": TokenSeqDataset(caches["b"], 16)}
    with pytest.raises(ConfigError, match="divides its rows") as caught:
        MixtureDataset(whole, {"a": 1, "b": 1}, batch_size=4)
    assert caught.value.field == "components.a"


def test_conversations_are_segments_from_config_to_loader(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chats = [
        {
            "messages": [
                {"role": "user", "content": "q" * (n % 5 + 1)},
                {"role": "assistant", "content": "a" * (n % 7 + 1)},
            ]
        }
        for n in range(60)
    ]
    Path("chat.jsonl").write_text("\n".join(map(json.dumps, chats)))
    template = (
        "{% for m in messages %}<{{ m.role[0] }}>{% generation %}{{ m.content }}{% endgeneration %}"
        "{% endfor %}"
    )
    source = headrace.SourceConfig(["chat.jsonl"], kind="chat", chat=ChatConfig(template=template))
    headrace.build_cache(source, headrace.TokenizerConfig("bytes"), "chat", progress=False)
    config = LmDataConfig(
        {"chat": ComponentConfig("chat")}, seq_len=64, batch_size=2, split_documents=True
    )
    begins = np.frombuffer(b"<u>", np.uint8)
    with config.loader(jax.sharding.Mesh(jax.devices()[:1], ("data",))) as loader:
        batch = next(loader.iter_from_step(0))
    tokens = np.asarray(batch.tokens)
    starts = np.asarray(batch.position_ids) == 0
    for row, first in zip(tokens, starts, strict=True):
        found = [i for i in range(62) if (row[i : i + 3] == begins).all()]
        assert found
        assert [0, *(i for i in found if i)] == np.flatnonzero(first)[: len(found) + 1].tolist()


def foreign_blocks(folder: Path, stream: np.ndarray, vocab_size: int) -> str:
    """A cache as other tools write it: a stream in rows of one length, whose documents end with a
    token.
    """
    written = write_cache(folder / "own", [list(stream)], vocab_size=vocab_size)
    write_levanter(written, str(folder / "blocks"))
    ledger = folder / "blocks" / "shard_ledger.json"
    data = json.loads(ledger.read_text())
    data["metadata"]["preprocessor_metadata"] = {}  # what another tool knows of it
    ledger.write_text(json.dumps(data))
    return str(folder / "blocks")


@pytest.fixture
def blocks(tmp_path) -> str:
    return foreign_blocks(tmp_path, np.random.default_rng(3).integers(0, EOS + 1, (40, 24)), 10)


def test_a_foreign_cache_of_blocks_is_divided_by_its_end_of_text(blocks, tmp_path):
    with pytest.raises(ConfigError, match="blocks of 24 tokens") as caught:
        TokenSeqDataset(blocks, 16, split_documents=True)
    assert (caught.value.field, "tokenizer" in (caught.value.cure or "")) == (
        "split_documents",
        True,
    )
    tokenizer = headrace.TokenizerConfig("ids:10", eos=str(EOS))
    own = write_cache(tmp_path / "more", [random_documents(40, vocab_size=9)], vocab_size=10)
    foreign = LmDataConfig(
        {"a": ComponentConfig(blocks)},
        seq_len=16,
        batch_size=4,
        split_documents=True,
        tokenizer=tokenizer,
    )
    caches = foreign.open_caches()
    alone = TokenSeqDataset(caches["a"], 16, split_documents=True)
    own_rows = TokenSeqDataset(own, 16, split_documents=True)
    mixed = MixtureDataset({"a": alone, "own": own_rows}, {"a": 1, "own": 1}, batch_size=4)
    one_device = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    with DataLoader(mixed, mesh=one_device) as loader:
        loaded = next(loader.iter_from_step(0))
    for batch in (alone.read(np.arange(9)), loaded):
        from_a = np.asarray(batch.source_id) == 0
        tokens = np.asarray(batch.tokens)[from_a]
        ends = np.pad(tokens[:, :-1] == EOS, ((0, 0), (1, 0)))
        assert np.asarray(batch.segment_ids)[from_a].tolist() == ends.cumsum(axis=1).tolist()
    by_hand = own_rows.read(np.arange(len(own_rows)))
    for row, ids in zip(
        np.asarray(loaded.tokens).tolist(), np.asarray(loaded.segment_ids).tolist(), strict=True
    ):
        if row in by_hand.tokens.tolist():
            assert ids == by_hand.segment_ids[by_hand.tokens.tolist().index(row)].tolist()


@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize("shuffle", [None, 50, True])
def test_no_segment_goes_on_behind_what_an_earlier_length_has_drawn(tmp_path, shuffle, by_token):
    """Tokens count up, so what is not the next number lies behind a gap."""
    stream = np.arange(9600)
    ends = np.arange(32, 9600, 33)
    if by_token:
        stream %= 9000
        ends = np.array([8999])
        cache = foreign_blocks(tmp_path, stream.reshape(-1, 24), 9000)
    else:
        cache = write_cache(tmp_path / "own", [np.split(stream, ends + 1)], vocab_size=9600).path
    config = LmDataConfig(
        {"a": ComponentConfig(cache)},
        seq_len={0: 16, 20: 100, 35: 24},
        batch_size=8,
        split_documents=True,
        tokenizer=headrace.TokenizerConfig("ids:9000", eos="8999") if by_token else None,
        **({} if shuffle is None else {"shuffle": shuffle}),
    )
    gaps = 0
    with config.loader(jax.sharding.Mesh(jax.devices()[:1], ("data",))) as loader:
        for step in range(20, 60):
            batch = loader.batch_at(step)
            tokens = np.asarray(batch.tokens)
            segments = np.asarray(batch.segment_ids)
            is_last = np.isin(tokens[:, :-1], ends)
            is_gap = ~is_last & (tokens[:, 1:] != tokens[:, :-1] + 1)
            assert np.array_equal(segments[:, 1:] != segments[:, :-1], is_last | is_gap)
            gaps += int(is_gap.sum())
    assert gaps > (10 if shuffle != 50 else 0)


def test_the_command_line_says_that_a_token_tells_documents_apart(blocks, monkeypatch, capsys):
    def said(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["headrace", *arguments])
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr().out

    run = f"{blocks}.yaml"
    Path(run).write_text(
        f"{{components: {{a: {blocks}}}, seq_len: 16, batch_size: 4, num_steps: 9}}"
    )
    settings = ["tokenizer={path: 'ids:10', eos: '9'}", "split_documents=true"]
    checked = json.loads(said("config", "check", run, *settings, "--json"))
    finding = next(one for one in checked["findings"] if one["rule"] == "ends_by_token")
    assert finding["field"] == "split_documents"
    assert checked["plan"]["components"][0]["end_token"] == EOS
    assert "ends_by_token" not in said("config", "check", run, settings[0], "split_documents=false")
    assert "blocks of 24 tokens" in said("cache", "inspect", blocks)


def test_offsets_are_read_once_for_all_that_share_a_cache(tmp_path):
    parts = [random_documents(30, seed=n) for n in range(3)]
    cache = write_cache(tmp_path, parts, eos_id=255)
    reads = []

    def counted(number, read):
        def read_and_count(start, stop):
            reads.append(number)
            return read(start, stop)

        return read_and_count

    for number, part in enumerate(cache.leaf("input_ids").parts):
        part.offsets.read = counted(number, part.offsets.read)
    short, long = (TokenSeqDataset(cache, n, split_documents=True) for n in (16, 32))
    for dataset in (short, long, short.shuffle(1)):
        dataset.read(np.arange(len(dataset)))
    assert sorted(reads) == [0, 1, 2]
