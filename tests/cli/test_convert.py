"""``headrace convert`` and ``headrace consolidate``: the same documents in another form."""

import json

import numpy as np

from headrace.store.cache import TokenCache
from headrace.testing import random_documents, write_cache


def tokens(path):
    cache = TokenCache.open(path)
    return cache.tokens(0, cache.num_tokens)


def test_there_and_back(headrace, tmp_path):
    cache = write_cache(tmp_path / "a", [random_documents(20, seed=k) for k in range(3)])
    for form in ("consolidated", "sharded"):
        done = headrace("convert", cache.path, f"{tmp_path}/{form}/train", "--layout", "levanter", "--form", form)
        assert (done.code, done.out.count("60 documents")) == (0, 1)
        back = f"{tmp_path}/back-{form}"
        done = headrace(
            "convert", f"{tmp_path}/{form}/train", back, "--layout", "headrace", "--dtype", "uint8", "--json"
        )
        assert json.loads(done.out) == {
            "path": back,
            "layout": "headrace",
            "documents": 60,
            "tokens": cache.num_tokens,
        }
        assert np.array_equal(tokens(back), tokens(cache.path))
        assert TokenCache.open(back).ledger.tokenizer == cache.ledger.tokenizer
    done = headrace("inspect", f"{tmp_path}/consolidated/train", "--json")
    assert (done.code, json.loads(done.out)["documents"]) == (0, 60)
    assert "60" in headrace("inspect", f"{tmp_path}/consolidated/train").out
    done = headrace("inspect", f"{tmp_path}/consolidated")
    assert done.code == 2
    assert f"name {tmp_path}/consolidated/train" in done.err


def test_consolidate(headrace, tmp_path):
    cache = write_cache(tmp_path / "a", [random_documents(20, seed=k) for k in range(3)])
    done = headrace("consolidate", cache.path, f"{tmp_path}/one")
    assert (done.code, done.out) == (
        0,
        f"Copied 3 parts of {cache.path} into one: {tmp_path}/one, 60 documents, {cache.num_tokens:,} tokens.\n",
    )
    assert np.array_equal(tokens(tmp_path / "one"), tokens(cache.path))
    facts = json.loads(headrace("consolidate", cache.path, f"{tmp_path}/one", "--json").out)
    assert facts["fingerprint"] == TokenCache.open(tmp_path / "one").fingerprint
    assert headrace("verify", f"{tmp_path}/one", "--deep").code == 0


def test_what_cannot_be(headrace, tmp_path):
    cache = write_cache(tmp_path / "a", [random_documents(20)])
    done = headrace("convert", cache.path, cache.path)
    assert (done.code, "holds other things" in done.err) == (2, True)
    done = headrace("convert", cache.path, f"{tmp_path}/b", "--layout", "headrace", "--dtype", "float32")
    assert (done.code, "is not a token dtype" in done.err) == (2, True)
