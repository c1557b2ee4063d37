"""Caches that keep the name of their tokenizer only (Levanter's): which tokenizer is believed to be
theirs.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.config import ComponentConfig, LmDataConfig
from headrace.errors import ConfigError
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.tokenize import load_tokenizer
from headrace.store import TokenCache, open_cache
from headrace_levanter.export import write_levanter


@pytest.fixture
def caches(
    tmp_path: Path, write_jsonl: Callable[..., str], bpe_path: str
) -> Callable[..., tuple[str, str]]:
    """A cache of headrace's, and the same as Levanter writes it, with what it says of the
    tokenizer.
    """

    def make(**said: Any) -> tuple[str, str]:
        write_jsonl(tmp_path / "corpus" / "a.jsonl", ["one", "two and three", ""])
        ours = str(tmp_path / "ours")
        theirs = tmp_path / "theirs"
        build_cache(
            SourceConfig([str(tmp_path / "corpus")]),
            TokenizerConfig(bpe_path),
            ours,
            progress=False,
        )
        write_levanter(open_cache(ours), str(theirs))
        ledger = json.loads((theirs / "shard_ledger.json").read_text())
        ledger["metadata"] = {"preprocessor_metadata": {"tokenizer": "org/model", **said}}
        (theirs / "shard_ledger.json").write_text(json.dumps(ledger))
        return ours, str(theirs)

    return make


def opened(*paths: str, tokenizer: TokenizerConfig | None = None) -> dict[str, TokenCache]:
    components = {f"c{k}": ComponentConfig(path) for k, path in enumerate(paths)}
    return LmDataConfig(components, tokenizer=tokenizer).open_caches()


@pytest.mark.parametrize("said", [{}, {"vocab_size": 300, "append_eos": True}])
def test_the_tokenizer_that_somebody_names_is_believed(
    caches: Callable[..., tuple[str, str]], bpe_path: str, said: dict[str, Any]
):
    ours, theirs = caches(**said)
    assert opened(theirs)["c0"].num_documents == 3
    assert opened(theirs, tokenizer=TokenizerConfig(bpe_path))["c0"].num_documents == 3
    assert len(opened(ours, theirs, tokenizer=TokenizerConfig(bpe_path))) == 2
    for pair in ((ours, theirs), (theirs, ours)):
        with pytest.raises(
            ConfigError, match=r"keep at most the name of theirs.*say so: tokenizer: \{path: FILE\}"
        ):
            opened(*pair)


def test_one_that_cannot_be_it_is_refused(caches: Callable[..., tuple[str, str]], bpe_path: str):
    vocabulary = load_tokenizer(TokenizerConfig(bpe_path)).vocab_size
    _, theirs = caches(vocab_size=vocabulary + 1, append_eos=True)
    with pytest.raises(
        ConfigError, match=rf"{vocabulary + 1} ids there, {vocabulary} here.*'org/model'"
    ):
        opened(theirs, tokenizer=TokenizerConfig(bpe_path))
    with pytest.raises(
        ConfigError, match=r"first document ends with id 2, documents end with '<s>', id 1 here"
    ):
        opened(theirs, tokenizer=TokenizerConfig(bpe_path, eos="<s>"))


def test_ends_are_not_compared_where_the_policy_has_none(
    caches: Callable[..., tuple[str, str]], bpe_path: str
):
    _, theirs = caches(append_eos=True)
    assert opened(theirs, tokenizer=TokenizerConfig(bpe_path, eos="none"))


def test_a_ledger_without_a_tokenizer_has_the_one_that_somebody_names(
    caches: Callable[..., tuple[str, str]], bpe_path: str
):
    """As Marin leaves it; documents end where the cache says, and what ends the first one is looked
    up.
    """
    _, theirs = caches()
    ledger = json.loads(Path(theirs, "shard_ledger.json").read_text())
    Path(theirs, "shard_ledger.json").write_text(
        json.dumps({**ledger, "metadata": {"preprocessor_metadata": None}})
    )
    rows = LmDataConfig(
        {"c": ComponentConfig(theirs)}, seq_len=4, batch_size=1, split_documents=True
    )
    segments = np.asarray(rows.dataset().read([0]).segment_ids)[0]

    first = int(opened(theirs)["c0"].lengths()[0])
    assert (segments == segments[0]).sum() == min(first, 4)
    named = replace(rows, tokenizer=TokenizerConfig(bpe_path))
    mine = load_tokenizer(TokenizerConfig(bpe_path))
    assert (named.vocab_size, named.dataset().eos_id) == (mine.vocab_size, mine.eos_id)
    other = replace(rows, tokenizer=TokenizerConfig(bpe_path, eos="<s>"))  # no document ends so
    assert np.array_equal(np.asarray(other.dataset().read([0]).segment_ids)[0], segments)
