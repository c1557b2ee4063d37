"""``headrace cache convert`` and ``headrace cache consolidate``: the same documents in another
form.
"""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from headrace.store import CacheLayout, open_cache
from headrace.store.layout import LeafSpec
from headrace.testing import write_cache
from headrace.testing.caches import random_documents


def tokens(path):
    cache = open_cache(path)
    return cache.tokens(0, cache.num_tokens)


def test_there_and_back(headrace, tmp_path):
    cache = write_cache(tmp_path / "a", [random_documents(20, seed=k) for k in range(3)])
    for form in ("consolidated", "sharded"):
        done = headrace(
            "cache",
            "convert",
            cache.path,
            f"{tmp_path}/{form}/train",
            "--layout",
            "levanter",
            "--form",
            form,
        )
        assert (done.code, done.out.count("60 documents")) == (0, 1)
        back = f"{tmp_path}/back-{form}"
        done = headrace(
            "cache",
            "convert",
            f"{tmp_path}/{form}/train",
            back,
            "--layout",
            "headrace",
            "--dtype",
            "uint8",
            "--json",
        )
        assert json.loads(done.out) == {
            "path": back,
            "layout": "headrace",
            "documents": 60,
            "tokens": cache.num_tokens,
        }
        assert np.array_equal(tokens(back), tokens(cache.path))
        assert open_cache(back).ledger.tokenizer == cache.ledger.tokenizer
    done = headrace("cache", "inspect", f"{tmp_path}/consolidated/train", "--json")
    assert (done.code, json.loads(done.out)["documents"]) == (0, 60)
    assert "60" in headrace("cache", "inspect", f"{tmp_path}/consolidated/train").out
    done = headrace("cache", "inspect", f"{tmp_path}/consolidated")
    assert done.code == 2
    assert f"Name one of them: {tmp_path}/consolidated/train" in done.err


def test_consolidate(headrace, tmp_path):
    cache = write_cache(tmp_path / "a", [random_documents(20, seed=k) for k in range(3)])
    done = headrace("cache", "consolidate", cache.path, f"{tmp_path}/one")
    assert (done.code, done.out) == (
        0,
        f"Copied 3 parts of {cache.path} into one: {tmp_path}/one, 60 documents,"
        f" {cache.num_tokens:,} tokens.\n",
    )
    assert np.array_equal(tokens(tmp_path / "one"), tokens(cache.path))
    facts = json.loads(
        headrace("cache", "consolidate", cache.path, f"{tmp_path}/one", "--json").out
    )
    assert facts["fingerprint"] == open_cache(tmp_path / "one").fingerprint
    assert headrace("cache", "verify", f"{tmp_path}/one", "--deep").code == 0


def test_a_cache_of_levanter_is_given_its_tokenizer(headrace, corpus, tmp_path):
    """It keeps a name only; the copy keeps what somebody says, and can be decoded from then on."""
    tokenizer = tmp_path / "tokenizer.json"
    words = {
        "<unk>": 0,
        "</s>": 1,
        "<s>": 14,
        **{w: k + 2 for k, w in enumerate(["file", "line", *"0123456789"])},
    }
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(["</s>", "<s>"])
    made.save(str(tokenizer))
    ends = ("--bos", "<s>", "--eos", "</s>")
    headrace("build", str(corpus), "-o", f"{tmp_path}/a", "-t", str(tokenizer), *ends)
    headrace("cache", "convert", f"{tmp_path}/a", f"{tmp_path}/theirs")
    ledger = json.loads((tmp_path / "theirs" / "shard_ledger.json").read_text())
    del ledger["metadata"]["preprocessor_metadata"][
        "headrace"
    ]  # as Levanter itself would have written it
    (tmp_path / "theirs" / "shard_ledger.json").write_text(json.dumps(ledger))
    command = [
        "cache",
        "convert",
        f"{tmp_path}/theirs",
        f"{tmp_path}/b",
        "--layout",
        "headrace",
        "--dtype",
        "uint16",
    ]
    done = headrace(*command, "-t", "bytes")
    assert (done.code, "begins with id 14, no special token here" in done.err) == (2, True)
    assert headrace(*command).code == 0
    done = headrace(*command, "-t", str(tokenizer))
    assert (done.code, "holds another cache" in done.err) == (2, True)
    command[3] = f"{tmp_path}/c"
    assert headrace(*command, "-t", str(tokenizer)).code == 0
    record = open_cache(tmp_path / "c").ledger.tokenizer
    assert (record["stated"], record["file"]) == (True, "tokenizer.json")
    assert (record["bos"], record["eos"]) == ("<s>", "</s>")
    assert record["fingerprint"] == open_cache(tmp_path / "a").ledger.tokenizer["fingerprint"]
    assert "file 0 line 1" in headrace("cache", "inspect", f"{tmp_path}/c", "--samples", "15").out
    # What is appended begins and ends as what is there.
    (tmp_path / "more.txt").write_text("file 7")
    before = open_cache(tmp_path / "c").num_documents
    assert headrace("build", f"{tmp_path}/more.txt", "-o", f"{tmp_path}/c", "--append").code == 0
    shown = headrace("cache", "inspect", f"{tmp_path}/c", "--document", str(before)).out
    assert "<s>file 7</s>" in shown.replace(" ", "").replace("file7", "file 7")
    done = headrace(
        "cache",
        "convert",
        f"{tmp_path}/a",
        f"{tmp_path}/d",
        "--layout",
        "headrace",
        "-t",
        str(tokenizer),
    )
    assert (done.code, "the cache keeps its own" in done.err) == (2, True)


def test_what_cannot_be(headrace, tmp_path):
    cache = write_cache(tmp_path / "a", [random_documents(20)])
    done = headrace("cache", "convert", cache.path, cache.path)
    assert (done.code, "holds a token cache already" in done.err) == (2, True)
    done = headrace(
        "cache",
        "convert",
        cache.path,
        f"{tmp_path}/b",
        "--layout",
        "headrace",
        "--dtype",
        "float32",
    )
    assert (done.code, "is not a dtype of tokens" in done.err) == (2, True)


@pytest.mark.parametrize("form", ["consolidated", "sharded"])
@pytest.mark.parametrize("gone", [[0], [3, 4, 5], [*range(12)], [0, 11, 12, 39], [7, 38, 39]])
def test_documents_that_were_removed_are_not_written(tmp_path, headrace, form, gone):
    """With their leaves: of a number a document, of numbers, and of two numbers a token."""
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 250, k % 5) for k in range(40)]
    leaves = {
        LeafSpec("score", "float32", "fixed"): lambda tokens: np.array([tokens.sum()], np.float32),
        LeafSpec("half", "int32", "ragged"): lambda tokens: tokens[::2].astype(np.int32),
        LeafSpec("pair", "int32", "ragged", 2): lambda tokens: np.stack([tokens] * 2, 1),
    }
    layout = CacheLayout("uint8", 16, 2)
    parts = [documents[:12], documents[12:]]
    cache = write_cache(tmp_path / "cache", parts, layout=layout, leaves=leaves)
    removed = list(map(str, gone))
    assert headrace("cache", "remove", cache.path, *removed).code == 0
    done = headrace("cache", "convert", cache.path, f"{tmp_path}/theirs", "--form", form, "--json")
    kept = [number for number in range(40) if number not in gone]
    assert json.loads(done.out)["documents"] == len(kept)
    theirs = open_cache(tmp_path / "theirs")
    assert theirs.num_documents == len(kept)
    for name in ("input_ids", *cache.leaves):
        found = [theirs.leaf(name).document(k).tolist() for k in range(len(kept))]
        assert found == [cache.leaf(name).document(number).tolist() for number in kept]
