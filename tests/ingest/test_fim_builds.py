"""Caches for filling in the middle: documents of the plain cache, rearranged,
whatever builds them.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, PlanMismatchError
from headrace.ingest import FimConfig, SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.documents import make_kind
from headrace.ingest.tokenize import load_tokenizer
from headrace.store import open_cache

SIGNS = ("<pre>", "<suf>", "<mid>")


@pytest.fixture(scope="module")
def tokenizer_path(make_tokenizer):
    return make_tokenizer(["<s>", "</s>", *SIGNS])


def filled(ids, signs):
    """The document that one with the prefix first was made of."""
    pre, suf, mid = (ids.index(s) if s in ids else None for s in signs)
    if pre is None:
        return ids
    return ids[:pre] + ids[pre + 1 : suf] + ids[mid + 1 :] + ids[suf + 1 : mid]


@settings(max_examples=50)
@given(
    texts=st.lists(st.text(max_size=30), min_size=1, max_size=8),
    seed=st.integers(0, 99),
    rate=st.sampled_from([0.5, 1.0]),
)
def test_documents_are_those_of_the_plain_cache_rearranged(tokenizer_path, texts, seed, rate):
    tokenizer = load_tokenizer(TokenizerConfig(tokenizer_path, bos="<s>", eos="</s>"))
    ids = [tokenizer.id_of(sign) for sign in SIGNS]
    config = SourceConfig(["x"], fim=FimConfig(*SIGNS, rate=rate, spm_rate=0.0, seed=seed))
    plain, fim = (make_kind(c, "text", tokenizer, None) for c in (SourceConfig(["x"]), config))
    documents = [d for text in texts for d in fim.documents({"text": text})]
    tokens, lengths, _ = fim.encode(documents)
    found = [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]
    for document, rearranged in zip(documents, found, strict=True):
        whole = plain.encode([document]).tokens.tolist()
        alone = fim.encode([document]).tokens.tolist()
        assert alone == rearranged  # of each document alone: not of its batch
        assert rearranged[0] == whole[0]
        assert rearranged[-1] == whole[-1]
        assert filled(rearranged[:-1], ids) == whole[:-1]
        if rate == 1.0 and len(whole) > 2:
            assert len(rearranged) == len(whole) + 3


def test_the_cache_is_the_same_whatever_builds_it(tmp_path, tokenizer_path, write_jsonl, tree):
    texts = [f"document {k} " + "word " * (k % 17) for k in range(200)]
    source = SourceConfig(
        [write_jsonl(tmp_path / "in.jsonl", texts)], fim=FimConfig(*SIGNS, rate=0.5)
    )
    tokenizer = TokenizerConfig(tokenizer_path, eos="</s>")

    def built(name, config=source, **options):
        build_cache(
            config, tokenizer, str(tmp_path / name), progress=False, part_bytes=2000, **options
        )
        return open_cache(str(tmp_path / name))

    cache = built("inline", engine="inline")
    built("pool", engine="pool", workers=2)
    assert tree(tmp_path / "inline") == tree(tmp_path / "pool")
    plain = built("plain", SourceConfig(source.paths))
    longer = cache.lengths() - plain.lengths()
    assert set(longer.tolist()) == {0, 3}
    assert 0.35 < (longer == 3).mean() < 0.65
    assert cache.ledger.metadata["source"]["fim"]["rate"] == 0.5
    other = SourceConfig(source.paths, fim=FimConfig(*SIGNS, rate=0.9))
    with pytest.raises(PlanMismatchError, match=r"fim .*'rate': 0\.5.* there, .*'rate': 0\.9"):
        built("inline", other)


@pytest.mark.parametrize(
    ("fim", "settings", "field", "message"),
    [
        (
            ("<prefix>", "<suf>", "<mid>"),
            {},
            "fim.prefix",
            r"is not a token of this tokenizer.*Did you mean '<pre>'",
        ),
        (("<pre>", "<pre>", "<mid>"), {}, "fim.suffix", "is no token of its own"),
        (("none", "<suf>", "<mid>"), {}, "fim.prefix", "is no token of its own"),
        ((*SIGNS, 1.5), {}, "rate", "must be a share"),
        (SIGNS, {"kind": "chat"}, "fim", "is for whole texts; of chat documents"),
        *(
            (
                SIGNS,
                {"kind": "tokens", "fields": {name: "m"}},
                "fim",
                "is for whole texts; of tokens",
            )
            for name in ("loss_mask", "labels", "prompt_len")
        ),
    ],
)
def test_bad_input_is_named(tokenizer_path, fim, settings, field, message):
    config = SourceConfig(["x"], fim=FimConfig(*fim), **settings)
    tokenizer = load_tokenizer(TokenizerConfig(tokenizer_path, eos="</s>"))
    template = {"text": "{% generation %}{% endgeneration %}", "tokens": {}}
    with pytest.raises(ConfigError, match=message) as caught:
        make_kind(config, settings.get("kind", "text"), tokenizer, template)
    assert caught.value.field == field
