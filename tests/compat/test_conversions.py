"""Megatron-LM's masks as recorded from it, and a batch in its form."""

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.batch import Example, pack_examples, pack_rows
from headrace_compat import ltor_masks, to_megatron

GOLDEN = Path(__file__).parents[1] / "golden"
LEAVES = ("tokens", "labels", "token_weights", "position_ids", "segment_ids", "label_mask")


def some_batch():
    rng = np.random.default_rng(0)
    return pack_examples(
        [
            Example(
                rng.integers(0, 30, n),
                loss_mask=rng.integers(0, 2, n),
                weights=float(rng.integers(1, 4)) / 2,
            )
            for n in (3, 5, 4, 2, 7, 1)
        ],
        10,
    )


@pytest.mark.parametrize(
    "case", json.loads((GOLDEN / "megatron_ltor_masks.json").read_text())["cases"]
)
def test_masks_of_megatron(case):
    flags = {
        name: case[name] for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
    }
    found = ltor_masks(np.array(case["tokens"]), case["eod"], **flags)
    assert found.loss_mask.tolist() == case["loss_mask"]
    assert found.position_ids.tolist() == case["position_ids"]
    assert found.blocked.astype(int).tolist() == case["attention_blocked"]


def test_all_of_megatrons_flags_are_a_packed_batch():
    tokens = np.random.default_rng(0).integers(0, 4, 50)
    batch = pack_rows(tokens[None], eos_id=0)
    found = ltor_masks(
        tokens, 0, reset_position_ids=True, reset_attention_mask=True, eod_mask_loss=True
    )
    assert np.array_equal(batch.position_ids[0], found.position_ids)
    assert np.array_equal(batch.token_weights[0, :-1], found.loss_mask[:-1])
    segments = batch.segment_ids[0]
    assert np.array_equal(found.blocked, (segments[:, None] != segments) | ~np.tri(50, dtype=bool))


def test_megatrons_keys():
    batch = some_batch()
    found = to_megatron(batch)
    assert found.cu_seqlens.shape == (batch.batch_size, 11)
    assert (found.cu_seqlens[:, -1] == 10).all()
    assert np.array_equal(found.max_seqlen, np.diff(batch.cu_seqlens, axis=1).max(axis=1))
    assert found.tokens.dtype == found.labels.dtype == found.position_ids.dtype == np.int64
