"""``dataset.preview()``: the text of examples, whatever their order, packing and mixture."""

import numpy as np
import pytest

from headrace import (
    MixtureDataset,
    SourceConfig,
    TokenizerConfig,
    TokenSeqDataset,
    build_cache,
    open_cache,
)
from headrace.data import PackedTokenDataset, PlannedDataset
from headrace.data.packed_store import PackedStoreDataset
from headrace.errors import ConfigError, IndexOutOfRangeError
from headrace.ingest import ReshuffleConfig, reshuffle
from headrace.store import TokenCache
from headrace.testing import tiny_cache

TEXTS = [
    f"document {k} of the {name}. " * (k % 4 + 1) for k in range(20) for name in ("river", "mill")
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> TokenCache:
    folder = tmp_path_factory.mktemp("preview")
    (folder / "texts").mkdir()
    for number, text in enumerate(TEXTS):
        (folder / "texts" / f"{number:03}.txt").write_text(text)
    build_cache(
        SourceConfig([str(folder / "texts")]), TokenizerConfig("bytes"), str(folder / "cache")
    )
    return open_cache(str(folder / "cache"))


def test_each_row_shows_the_text_of_its_tokens(cache):
    base = TokenSeqDataset(cache, seq_len=48)
    mixture = MixtureDataset(
        {"a": base, "b": PackedTokenDataset(cache, seq_len=48)}, {"a": 1, "b": 1}, batch_size=4
    )
    for dataset in (base, base.shuffle(0), base.braid_shuffle(batch_size=4, seed=1), mixture):
        assert isinstance(dataset, PlannedDataset)
        rows = dataset.preview(rows=6, first=1)
        assert [row.example for row in rows] == [*range(1, 7)]
        for row, tokens in zip(rows, dataset.read(np.arange(1, 7)).tokens, strict=True):
            held = sum(span.tokens for span in row.spans)
            assert bytes(
                t for t in np.asarray(tokens)[:held].tolist() if t < 256
            ).decode() == row.text.replace("<eos>", "")
            for span in row.spans:
                whole = TEXTS[span.document] + "<eos>"
                assert span.text == (whole[span.offset :])[: len(span.text)]


def test_it_is_made_to_be_printed(cache):
    printed = repr(TokenSeqDataset(cache, seq_len=48).preview(rows=2))
    assert printed.startswith("example 0: ")
    assert "  document 0, 26 tokens from 0: 'document 0 of the river. <eos>'" in printed
    assert "example 1: " in printed


def test_ids_without_a_tokenizer_are_numbers():
    dataset = TokenSeqDataset(tiny_cache(), seq_len=8)
    assert dataset.preview(1)[0].text.replace(" ", "").isdigit()


def test_it_ends_with_the_dataset_and_names_what_is_not_there(cache):
    dataset = TokenSeqDataset(cache, seq_len=48)
    assert len(dataset.preview(rows=10**6)) == dataset.length
    with pytest.raises(IndexOutOfRangeError):
        dataset.preview(first=dataset.length)
    with pytest.raises(IndexOutOfRangeError):
        dataset.preview(first=-1)
    for bad in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="rows"):
            dataset.preview(rows=bad)


def test_pieces_of_documents_that_a_copy_cut_name_their_places_in_the_whole(tmp_path):
    cache = tiny_cache(documents=20)
    reshuffle(cache, str(tmp_path), ReshuffleConfig(0, pack=16), progress=False)
    dataset = PackedStoreDataset(str(tmp_path), seq_len=16)
    rows = dataset.preview(rows=len(dataset))
    for row, tokens in zip(rows, np.asarray(dataset.read(range(len(rows))).tokens), strict=True):
        column = 0
        for span in row.spans:
            whole = cache.document(span.document)
            expected = whole[span.offset : span.offset + span.tokens]
            assert tokens[column : column + span.tokens].tolist() == expected.tolist()
            column += span.tokens
    assert any(span.offset for row in rows for span in row.spans)
