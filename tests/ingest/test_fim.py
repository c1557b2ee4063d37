"""Fill-in-the-middle: nothing lost, documents apart, random access, and the shares that were asked
for.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.ingest import FillInMiddle

PRE = 250
SUF = 251
MID = 252
EOS = 0


documents = st.lists(st.lists(st.integers(1, 200), max_size=12), min_size=1, max_size=12)


@given(documents, st.integers(0, 2**63), st.sampled_from([0.0, 0.5, 1.0]), st.booleans())
def test_a_psm_document_is_the_document_in_another_order(docs, seed, rate, eos):
    docs = [[*d, EOS] if eos else d for d in docs]
    lengths = np.array([len(d) for d in docs])
    numbers = np.arange(len(docs)) * 7 + 3
    fim = FillInMiddle(
        PRE, SUF, MID, seed=seed, rate=rate, spm_rate=0.0, eos_id=EOS if eos else None
    )
    tokens = np.array([t for d in docs for t in d], np.uint8)
    out, sizes = fim(tokens, lengths, numbers)
    assert out.dtype == np.uint8
    assert sizes.tolist() == fim.lengths(lengths, numbers).tolist()
    chosen = fim.rearranges(lengths, numbers)
    if rate == 1.0:
        assert chosen.tolist() == (lengths > 1).tolist()
    bounds = np.cumsum([0, *sizes.tolist()])
    for k, (document, is_chosen) in enumerate(zip(docs, chosen.tolist(), strict=True)):
        found = out[
            bounds[k] : bounds[k + 1]
        ].tolist()  # the document mask: lengths say where documents lie
        assert (PRE in found) == is_chosen
        if not is_chosen:
            assert found == document
            continue
        body = found[:-1] if eos else found
        suf = body.index(SUF)
        mid = body.index(MID)
        assert body[1:suf] + body[mid + 1 :] + body[suf + 1 : mid] == document[: len(body) - 3]
        assert not eos or found[-1] == EOS
        one, size = fim(np.array(document, np.uint8), np.array([len(document)]), numbers[k : k + 1])
        assert (one.tolist(), size.tolist()) == (found, [len(found)])  # one by one as all at once


@given(documents, st.integers(0, 1000))
def test_an_spm_document_is_suffix_then_prefix_and_middle(docs, seed):
    lengths = np.array([len(d) for d in docs])
    numbers = np.arange(len(docs))
    tokens = np.array([t for d in docs for t in d], np.int64)
    out, sizes = FillInMiddle(PRE, SUF, MID, seed=seed, rate=1.0, spm_rate=1.0)(
        tokens, lengths, numbers
    )
    bounds = np.cumsum([0, *sizes.tolist()])
    for k, document in enumerate(docs):
        found = out[bounds[k] : bounds[k + 1]].tolist()
        if len(document) > 1:
            assert found[:2] == [PRE, SUF]
            mid = found.index(MID)
            assert found[mid + 1 :] + found[2:mid] == document


@given(documents, st.integers(0, 1000), st.booleans())
def test_a_first_token_that_opens_documents_stays_first(docs, seed, eos):
    bos = 249
    plain = FillInMiddle(PRE, SUF, MID, seed=seed, rate=1.0)
    framed = FillInMiddle(
        PRE, SUF, MID, seed=seed, rate=1.0, eos_id=EOS if eos else None, bos_id=bos
    )
    for k, document in enumerate(docs):
        closes = [EOS] if eos else []
        whole = np.array([bos, *document, *closes])
        out, size = framed(whole, np.array([whole.size]), np.array([k]))
        inner, _ = plain(np.array(document, np.int64), np.array([len(document)]), np.array([k]))
        if len(document) > 1:
            assert out.tolist() == [bos, *inner.tolist(), *closes]
        assert size.tolist() == framed.lengths(np.array([whole.size]), np.array([k])).tolist()
        assert sorted(out.tolist()) == sorted(
            [*whole.tolist(), *([PRE, SUF, MID] if size[0] > whole.size else [])]
        )
        assert size[0] == whole.size or document  # nothing but its frame: nothing to fill


def test_shares_and_cuts_are_what_was_asked_for():
    n = 20_000
    lengths = np.full(n, 9)
    numbers = np.arange(n)
    fim = FillInMiddle(PRE, SUF, MID, seed=1, rate=0.3, spm_rate=0.25)
    chosen = fim.rearranges(lengths, numbers)
    assert abs(chosen.mean() - 0.3) < 0.02
    tokens = np.tile(np.arange(1, 10), n)
    out, sizes = fim(tokens, lengths, numbers)
    ends = np.cumsum(sizes)
    rows = [out[e - s : e].tolist() for e, s, c in zip(ends, sizes, chosen, strict=True) if c]
    spm = sum(r[1] == SUF and r[2:3] != [1] for r in rows) / len(rows)
    assert 0.25 <= spm <= 0.25 + 0.19 * 0.75 + 0.03  # an empty prefix looks the same in both
    empty_middle = sum(r[-1] == MID for r in rows) / len(rows)
    assert 0.05 < empty_middle < 0.15  # both cuts at one of ten places


def test_the_order_of_calls_changes_nothing():
    # a generator of the dataset's own, as Megatron's, gives other documents when they are read in
    # another order
    fim = FillInMiddle(PRE, SUF, MID, rate=0.5)
    numbers = np.random.default_rng(0).permutation(100)
    lengths = np.full(100, 20)
    forward = fim.rearranges(lengths, numbers)
    backward = fim.rearranges(lengths, numbers[::-1])
    assert forward.tolist() == backward[::-1].tolist()
    other = FillInMiddle(PRE, SUF, MID, rate=0.5, seed=1).rearranges(lengths, numbers)
    assert forward.tolist() != other.tolist()


def test_nothing_is_cut_or_padded_to_the_old_length():
    # the original cuts or pads what comes out to the length of the sample
    tokens = np.arange(1, 101)
    out, sizes = FillInMiddle(PRE, SUF, MID, rate=1.0)(tokens, np.array([100]), np.array([0]))
    assert sizes.tolist() == [103]
    assert sorted(out.tolist()) == sorted([*range(1, 101), PRE, SUF, MID])


def test_bad_input_is_named():
    fim = FillInMiddle(PRE, SUF, 300)
    with pytest.raises(ConfigError, match="do not fit the tokens' dtype uint8"):
        fim(np.array([1], np.uint8), np.array([1]), np.array([0]))
    with pytest.raises(ConfigError, match="add up to 2"):
        fim(np.array([1]), np.array([2]), np.array([0]))
    with pytest.raises(ConfigError, match="has more than 64 bits"):
        FillInMiddle(253, 254, 255, seed=1 << 64)
    with pytest.raises(ConfigError, match="must be a share"):
        FillInMiddle(PRE, SUF, MID, rate=2.0)


def test_pinned():
    out, sizes = FillInMiddle(PRE, SUF, MID, seed=3, rate=0.7)(
        np.arange(1, 31), np.full(5, 6), np.arange(5)
    )
    assert (sizes.tolist(), out.tolist()) == PINNED


PINNED = (
    [6, 9, 9, 6, 6],
    [*range(1, 7), PRE, SUF, MID, *range(7, 13), PRE, SUF, MID, *range(13, 31)],
)
