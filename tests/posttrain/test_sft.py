"""What of a conversation is trained on, mode by mode; media; and masks of caches in packed,
shuffled rows.
"""

from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.analysis import simulate
from headrace.analysis.check.sizes import planned_caches
from headrace.analysis.simulate.forecast import RunSteps
from headrace.batch import pack_examples
from headrace.config import ComponentConfig, LmDataConfig
from headrace.data import MixtureDataset, PackedTokenDataset, TokenSeqDataset
from headrace.data.phased import PhasedDataset
from headrace.errors import ConfigError, ReadError
from headrace.feed import DataLoader
from headrace.ingest import SourceConfig
from headrace.mix import BatchSchedule
from headrace.pack import plan_packs
from headrace.store import CacheLayout, open_cache
from headrace.store.layout import LeafSpec
from headrace.store.ledger import Ledger, write_ledger
from headrace.store.ragged import PartWriter
from headrace.testing import write_cache
from headrace_posttrain import Media, Message, conversation
from headrace_posttrain.sft import MODES

CHAT = [
    Message("system", [[10]], [1], trainable=True),
    Message("user", [[11]], [1], trainable=False),
    Message("assistant", [[12]], [1], trainable=False),
    Message("user", [[13]], [1], trainable=False),
    Message("assistant", [[14]], [1], trainable=True),
    Message("tool", [[15]], [1], trainable=False),
    Message("assistant", [[16]], [1], trainable=False),
]
WANTED = {
    "last_assistant_message": [16],
    "last_assistant_turn": [14, 16],
    "all_assistant_messages": [12, 14, 16],
    "all_messages": [10, 11, 12, 13, 14, 15, 16],
    "all_tokens": [0, 1, 10, 1, 11, 1, 12, 1, 13, 1, 14, 1, 15, 1, 16],
    "all_user_and_system_messages": [10, 11, 13],
    "customized": [10, 14],
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode(mode):
    example = conversation(CHAT, mode, bos=[0])
    assert example.tokens[example.loss_mask != 0].tolist() == WANTED[mode]
    assert example.length == 15


def test_the_last_message_of_the_assistant_need_not_be_the_last():
    asked_again = [*CHAT, Message("user", [[17]])]
    assert conversation(asked_again, "last_assistant_message").loss_mask.tolist() == [
        *conversation(CHAT, "last_assistant_message").loss_mask.tolist(),
        0,
    ]
    assert not conversation(asked_again, "last_assistant_turn").loss_mask.any()
    assert conversation(asked_again, "all_messages").loss_mask.any()


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant"]), st.integers(0, 4)), min_size=1, max_size=6
    )
)
def test_a_weight_is_the_label_s(turns):
    ids = iter(range(100, 1000))
    messages = [Message(role, [[next(ids) for _ in range(n)]], [1]) for role, n in turns]
    batch = pack_examples([conversation(messages)], 64)
    trained = sorted(i for m in messages if m.role == "assistant" for i in list(m.content[0]))
    assert sorted(batch.labels[batch.token_weights > 0].tolist()) == trained


def test_media_count_and_are_carried_and_are_never_trained_on():
    chat = [
        Message("user", [[5], Media(3, 9), [6]], [1]),
        Message("assistant", [[7], Media(2, 9)], [2]),
    ]
    example = conversation(chat, "all_tokens")
    assert example.length == 10
    assert example.extras["media"].tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 2, 2]
    assert (example.loss_mask == (example.extras["media"] == 0)).all()
    batch = pack_examples([conversation(chat), conversation(CHAT)], 32)
    assert ((batch.extras["media"] > 0) == (batch.tokens == 9)).all()


@given(st.integers(1, 10))
def test_a_cut_never_goes_through_a_medium(length):
    chat = [Message("user", [[5], Media(3, 9), Media(2, 9), [6]], [1])]
    example = conversation(chat, "all_messages", max_length=length)
    whole = conversation(chat, "all_messages")
    assert example.length <= min(length, whole.length)
    assert np.array_equal(example.tokens, whole.tokens[: example.length])
    for number, size in ((1, 3), (2, 2)):
        assert (example.extras["media"] == number).sum() in (0, size)
    if length not in (3, 4, 6):
        assert example.length == min(length, whole.length)


def test_conversations_with_media_have_lengths_to_plan_with():
    chats = [
        [Message("user", [[1] * k, Media(3 * k + 1, 7)]), Message("assistant", [[2] * k])]
        for k in range(1, 6)
    ]
    once, again = ([conversation(c) for c in chats] for _ in range(2))
    lengths = [e.length for e in once]
    assert lengths == [e.length for e in again] == [k + 3 * k + 1 + k for k in range(1, 6)]
    plan = plan_packs(lengths, 32, long="error")
    assert (plan.lengths <= 32).all()
    batch = pack_examples(once, 32)
    assert batch.segment_lengths is not None
    assert batch.extras is not None
    assert np.sort(batch.segment_lengths[batch.segment_lengths > 0]).tolist() == sorted(lengths)
    assert ((batch.tokens == 7) == (batch.extras["media"] > 0)).all()
    assert not batch.label_mask[batch.labels == 7].any()


def test_bad_input():
    with pytest.raises(ConfigError, match="Did you mean 'all_messages'"):
        conversation(CHAT, "all_message")
    with pytest.raises(ConfigError, match=r"messages\[0\].trainable"):
        conversation([Message("user", [[1]])], "customized")
    with pytest.raises(ConfigError, match=r"Media\.length"):
        conversation([Message("user", [Media(0)])])
    with pytest.raises(ConfigError, match="max_length"):
        conversation([Message("user", [Media(3)])], max_length=2)


def masked_cache(root, lengths_of_parts, *, leaf="ragged", name="loss_mask", dtype="uint8"):
    """Documents whose mask follows from the token: odd ones are trained on."""
    layout = CacheLayout("uint16", chunk_elements=16, shard_chunks=2)
    spec = LeafSpec(name, dtype, leaf)
    records = []
    at = 1
    for number, lengths in enumerate(lengths_of_parts):
        writer = PartWriter(str(root), f"{number:05d}", layout, [spec])
        for n in lengths:
            ids = np.arange(at, at + n)
            of_document = (ids % 2).astype(dtype), np.array([n])
            writer.append(
                ids, np.array([n]), {name: of_document if leaf == "ragged" else (ids[:1] % 2, None)}
            )
            at += n
        records.append(writer.close())
    tokenizer = {"path": "t", "file": None, "fingerprint": "t", "vocab_size": 60000}
    tokenizer |= {"bos": None, "bos_id": None, "eos": None, "eos_id": None}
    leaves = [{"name": name, "dtype": dtype, "kind": leaf}]
    write_ledger(
        str(root), Ledger(False, tokenizer, layout.to_dict(), leaves=leaves).complete(records)
    )
    return open_cache(root)


@pytest.mark.parametrize("algorithm", ["bfd", "windowed", "wrap"])
def test_masks_of_a_cache_stay_with_their_tokens(tmp_path, algorithm):
    cache = masked_cache(tmp_path, [[5, 9, 3, 12], [7, 1, 20]])
    rows = PackedTokenDataset(cache, 24, algorithm=algorithm)
    for dataset in (rows, rows.shuffle(seed=1)):
        batch = dataset.read(np.arange(len(dataset)))
        row, at = np.nonzero(batch.label_mask)
        assert (batch.labels[row, at] == batch.tokens[row, at] + 1).all()
        assert (batch.labels[row, at] % 2 == 1).all()
        inside = batch.segment_ids[:, :-1] == batch.segment_ids[:, 1:]
        inside &= batch.segment_ids[:, :-1] >= 0
        assert batch.label_mask.sum() == (batch.labels[:, :-1][inside] % 2 == 1).sum()
        again = dataset.shuffle(seed=2).read(np.arange(len(dataset)))
        known = batch.token_mask.tolist()
        assert sorted(again.token_mask.tolist()) == sorted(known)
        assert dataset.read([]).token_mask.shape == (0, 24)
    assert rows.describe()["loss_mask"] == "loss_mask"
    everything = PackedTokenDataset(cache, 24, algorithm=algorithm, loss_mask="none")
    assert "loss_mask" not in everything.describe()
    assert everything.read([0]).token_mask is None


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("leaf", [{}, {"name": "assistant_masks", "dtype": "int32"}])
def test_masks_go_through_mixtures_splits_and_loaders(tmp_path, packed, leaf):
    """Beside a source without a mask, whose tokens all count; on devices, in batches that are not
    full.
    """
    chats = masked_cache(tmp_path / "chats", [[5, 9, 3, 12], [7, 1, 20]], **leaf)
    texts = write_cache(tmp_path / "texts", [[np.arange(2, 200, 2)] * 3])
    rows = [PackedTokenDataset(c, 24) if packed else TokenSeqDataset(c, 24) for c in (chats, texts)]
    assert TokenSeqDataset(chats, 4).holdout_documents(one_in=3)[0].read([0]).token_mask is not None
    mixture = MixtureDataset(dict(zip("ab", rows, strict=True)), {"a": 1, "b": 1}, 4)
    for dataset, batch_size in ((mixture, None), (rows[0].shuffle(seed=3), 2 * jax.device_count())):
        with DataLoader(
            dataset, batch_size, mesh=jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
        ) as loader:
            stop = 6 if loader.num_steps is None else loader.num_steps
            for step, batch in zip(range(stop), loader, strict=False):
                tokens, labels, mask = (
                    np.asarray(x) for x in (batch.tokens, batch.labels, batch.label_mask)
                )
                inside = (
                    np.asarray(batch.position_ids)[:, 1:]
                    == np.asarray(batch.position_ids)[:, :-1] + 1
                )
                inside &= (np.asarray(batch.segment_ids)[:, 1:] >= 0) & np.asarray(batch.valid)[
                    :, None
                ]
                counted = (labels[:, :-1] % 2 == 1) | (np.asarray(batch.source_id) == 1)[:, None]
                assert np.array_equal(mask[:, :-1], inside & counted)
                assert batch.token_mask.dtype == np.uint8
                assert tokens.dtype == np.int32
                again = loader.batch_at(step)
                assert np.array_equal(mask, again.label_mask)


def test_a_leaf_that_is_no_mask_is_refused(tmp_path):
    cache = masked_cache(tmp_path, [[5, 9]], leaf="fixed")
    with pytest.raises(ConfigError, match="not one number per token"):
        PackedTokenDataset(cache, 24)
    PackedTokenDataset(cache, 24, loss_mask="none")
    with pytest.raises(ConfigError, match="Did you mean 'loss_mask'"):
        TokenSeqDataset(cache, 4, loss_mask="los_mask")
    config = LmDataConfig(
        components={"chat": ComponentConfig(cache.path, loss_mask="los_mask")}, seq_len=4
    )
    with pytest.raises(ConfigError, match=r"components\.chat\.loss_mask"):
        config.datasets()


def test_a_flipped_bit_of_a_mask_is_named(tmp_path):
    cache = masked_cache(tmp_path, [[40, 40]])
    shard = next(Path(cache.path).glob("parts/*/loss_mask/data/c/1"))
    content = bytearray(shard.read_bytes())
    content[3] ^= 1
    shard.write_bytes(content)
    rows = TokenSeqDataset(open_cache(cache.path), 16)
    loader = DataLoader(rows, 1, mesh=jax.make_mesh((1,), ("data",), devices=jax.devices()[:1]))
    with pytest.raises(ReadError, match=r"array = .*loss_mask.*chunk 2 cannot be read for step 2"):
        list(loader)
    for step in (0, 1, 3):
        loader.batch_at(step)


def test_what_is_not_built_yet_is_planned_with_its_mask(tmp_path):
    """By the name of the leaf, or as conversations have one."""
    chat = SourceConfig(["chats.jsonl"], kind="chat")
    plain, named, built = (
        LmDataConfig(
            {"a": ComponentConfig("no/where", expected_tokens=1e6, **more)},
            seq_len=64,
            batch_size=8,
        )
        for more in ({}, {"loss_mask": "loss_mask"}, {"source": chat})
    )
    bytes_per_step = []
    for config in (plain, named, built):
        dataset = config.with_caches(planned_caches(config).caches).dataset()
        forecast = simulate(dataset, BatchSchedule(8), hosts=[1], steps=RunSteps(num_steps=20))
        bytes_per_step.append(forecast.by_hosts[0].bytes_per_step)
    assert bytes_per_step[1] == bytes_per_step[2] == pytest.approx(1.25 * bytes_per_step[0])


def test_phases_that_mask_differently_are_refused(tmp_path):
    cache = masked_cache(tmp_path, [[40, 40]])
    phases = [(0, TokenSeqDataset(cache, 8)), (2, TokenSeqDataset(cache, 16, loss_mask="none"))]
    with pytest.raises(ConfigError, match=r"phases\[2\]"):
        PhasedDataset(phases, BatchSchedule(2))
