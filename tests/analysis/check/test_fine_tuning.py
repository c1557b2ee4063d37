"""What ``config check`` says of fine-tuning: each finding with its figures, its field, and a cure,
typed here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import headrace
from headrace import load_config
from headrace.analysis.check.findings import Finding, findings
from headrace.analysis.check.plan import ComponentPlan, RunPlan
from headrace.errors import ConfigError
from headrace.ingest import ChatConfig
from headrace.testing import write_cache


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("chats")


def chats_of(folder: Path, lengths, answers: int, name: str = "chats") -> str:
    """A cache of conversations, each a question and an answer of ``answers`` tokens, which are
    trained on.
    """
    documents = [np.full(n, number % 200) for number, n in enumerate(lengths)]
    path = folder / name
    if not path.exists():
        write_cache(
            path, [documents], mask=lambda tokens: np.arange(tokens.size) >= tokens.size - answers
        )
    return str(path)


def check(cache: str, *settings: str) -> tuple[dict[str, Finding], ComponentPlan]:
    defaults = [
        f"components={{a: {{cache: {cache}}}}}",
        "seq_len=32",
        "batch_size=4",
        "num_steps=3",
    ]
    plan = RunPlan.of(load_config(overrides=[*defaults, *settings]), hosts=[1])
    return {one.rule: one for one in findings(plan)}, plan.components[0]


def typed(finding: Finding, name: str) -> str:
    """The setting of this name that a cure says to write, as it is typed."""
    match = re.search(rf"\b{re.escape(name)}: (\S+?)[).,;]*(?= |$)", finding.cure)
    assert match, finding.cure
    return f"{name}={match[1]}"


@given(
    lengths=st.lists(st.integers(3, 40), min_size=8, max_size=60),
    answers=st.integers(1, 3),
    seq_len=st.integers(8, 24),
    packing=st.sampled_from(["null", "{}", "{long: split}", "{algorithm: wrap}"]),
)
def test_the_figures_are_those_of_all_rows(tmp_path_factory, lengths, answers, seq_len, packing):
    cache = chats_of(tmp_path_factory.mktemp("c"), lengths, answers)
    if (packing == "{}" and min(lengths) > seq_len) or sum(lengths) < seq_len:
        return
    _, plan = check(cache, f"components.a.packing={packing}", f"seq_len={seq_len}")
    talk = plan.conversations
    assert talk is not None
    config = load_config(
        overrides=[
            f"components={{a: {{cache: {cache}, packing: {packing}}}}}",
            f"seq_len={seq_len}",
        ]
    )
    rows = config.train_datasets()["a"]
    batch = rows.read(np.arange(len(rows)))
    assert talk.looked_rows == plan.rows == len(rows)
    assert talk.untrained_rows == int((~batch.label_mask.any(axis=1)).sum())
    ends = np.cumsum(lengths)
    begins = {0, *ends.tolist()}
    if packing == "null":
        first = np.arange(len(rows)) * seq_len
        assert talk.begun_inside == sum(int(one) not in begins for one in first)
    if packing == "{}":
        assert talk.begun_inside == 0
        assert talk.left_out_documents == sum(n > seq_len for n in lengths)
        assert talk.left_out_tokens == sum(n for n in lengths if n > seq_len)
    assert talk.longest == max(lengths)


def test_rows_that_train_nothing_are_said_with_their_share(folder):
    cache = chats_of(folder, [10, 60] * 30, 4)
    found, plan = check(cache, "components.a.packing={long: truncate}")
    said = found["untrained_rows"]
    talk = plan.conversations
    assert talk is not None
    assert (said.level, said.field) == ("warning", "components.a.loss_mask")
    assert (
        f"{talk.untrained_rows:,} of {plan.rows:,} rows ({talk.untrained_share:.1%})"
        in said.problem
    )
    assert "raise seq_len to 60" in said.cure
    for cured in ("seq_len=60", typed(said, "components.a.loss_mask")):
        again, _ = check(cache, "components.a.packing={long: truncate}", cured)
        assert "untrained_rows" not in again


def test_a_run_that_trains_nothing_at_all_is_a_problem(folder):
    cache = write_cache(
        folder / "nothing", [[np.arange(20)] * 40], mask=lambda tokens: np.zeros_like(tokens)
    ).path
    for packing in ("null", "{}"):
        found, _ = check(cache, f"components.a.packing={packing}")
        said = found["untrained_rows"]
        assert said.level == "problem"
        assert "(100.0%)" in said.problem
        again, _ = check(
            cache, f"components.a.packing={packing}", typed(said, "components.a.loss_mask")
        )
        assert "untrained_rows" not in again


@pytest.mark.parametrize(
    ("packing", "cured"),
    [
        ("null", "components.a.packing={}"),
        ("{long: split}", "components.a.packing={}"),
        ("{algorithm: wrap}", "components.a.packing={}"),
        ("{algorithm: bfd, long: truncate_start}", "components.a.packing={algorithm: bfd}"),
    ],
)
def test_conversations_without_their_question_are_said(folder, packing, cured):
    cache = chats_of(folder, [10, 60] * 30, 4)
    found, plan = check(cache, f"components.a.packing={packing}")
    said = found["cut_conversations"]
    talk = plan.conversations
    assert talk is not None
    assert said.field == "components.a.packing"
    assert f"{talk.begun_inside:,} of {talk.pieces:,}" in said.problem
    again, _ = check(cache, cured)
    assert "cut_conversations" not in again
    assert f"raise it to {talk.longest:,}" in said.cure
    again, _ = check(cache, cured, f"seq_len={talk.longest}")
    assert not {"cut_conversations", "left_out_conversations"} & again.keys()


def test_conversations_that_are_left_out_are_said(folder, caplog):
    cache = chats_of(folder, [10, 60] * 30, 4)
    found, _ = check(cache, "components.a.packing={}")
    said = found["left_out_conversations"]
    assert said.field == "seq_len"
    assert (
        "30 of 60 conversations of 'a' have (50.0%): they are left out, 1,800 tokens"
        in said.problem
    )
    assert "leaves out 1,800 tokens" in caplog.text
    assert "left_out_conversations" not in check(cache, "components.a.packing={}", "seq_len=60")[0]
    assert "Raise it to 60" in said.cure
    again, _ = check(cache, "components.a.packing={}", typed(said, "components.a.packing.long"))
    assert "left_out_conversations" not in again


@pytest.mark.parametrize(
    ("settings", "field", "setting"),
    [
        (["num_steps=1", "max_epochs=1"], "num_steps", "num_steps"),
        (["num_steps=null", "max_epochs=1", "last_batch=drop"], "last_batch", "last_batch"),
    ],
)
def test_rows_that_are_never_seen_are_said(folder, settings, field, setting):
    cache = write_cache(folder / f"rows-{field}", [[np.arange(2) for _ in range(16 * 590)]]).path
    found, plan = check(cache, "batch_size=512", *settings)
    assert plan.rows == 590
    assert plan.unseen_rows == 78
    said = found["unseen_rows"]
    assert said.field == field
    assert "78 of 590 rows of 'a' unseen (13.2%)" in said.problem
    again, plan = check(cache, "batch_size=512", *settings, typed(said, setting))
    assert plan.unseen_rows == 0
    assert "unseen_rows" not in again


@pytest.mark.parametrize(
    "settings",
    [["num_steps=1"], ["num_steps=3", "max_epochs=3"], ["max_epochs=0.5", "num_steps=null"]],
)
def test_rows_that_are_seen_or_not_asked_for_are_not_said(folder, settings):
    cache = write_cache(
        folder / f"rows{len(settings[0])}{settings[-1][0]}",
        [[np.arange(2) for _ in range(16 * 590)]],
    ).path
    assert "unseen_rows" not in check(str(cache), "batch_size=59", *settings)[0]


def test_batches_of_more_rows_than_the_data_have_are_said(folder):
    cache = chats_of(folder, [64] * 30, 4, "few")
    settings = ["num_steps=null", "max_epochs=1"]
    size = "batch_size={0: 16, 1: 100}"
    found, plan = check(cache, *settings, size)
    said = found["mostly_padding"]
    assert said.field == "batch_size"
    assert f"the data have {plan.rows} rows: {100 - (plan.rows - 16)} rows" in said.problem
    again, _ = check(cache, *settings, typed(said, "batch_size"))
    assert "mostly_padding" not in again
    assert "leave max_epochs out" in said.cure
    assert "mostly_padding" not in check(cache, size)[0]
    assert "mostly_padding" not in check(cache, *settings, size, "last_batch=fill")[0]


def test_a_run_of_one_batch_that_is_not_full_is_refused(folder):
    cache = chats_of(folder, [64] * 30, 4, "few")
    settings = ["num_steps=null", "max_epochs=1"]
    with pytest.raises(ConfigError, match="more than the 60 rows that the data have") as caught:
        check(cache, *settings, "batch_size=100")
    assert (caught.value.field, caught.value.value) == ("batch_size", 100)
    size = re.search(r"Write batch_size: (\d+)", caught.value.cure or "")
    assert size is not None
    assert check(cache, *settings, f"batch_size={size[1]}")[1].unseen_rows == 0
    assert "leave max_epochs out" in (caught.value.cure or "")
    check(cache, "batch_size=100")


def test_tokens_that_a_change_of_length_leaves_out_are_said(folder):
    cache = chats_of(folder, [10, 60] * 30, 4)
    found, plan = check(cache, "seq_len={0: 32, 3: 48}", "num_steps=12")
    assert plan.skipped_tokens < 48  # less than a row, which is not said
    assert "skipped_tokens" not in found
    # Whole conversations of 60 tokens fit no row of the second length
    packed = "components.a.packing={}"
    found, plan = check(cache, packed, "seq_len={0: 64, 3: 32}", "num_steps=12")
    said = found["skipped_tokens"]
    assert said.field == "seq_len"
    assert plan.skipped_tokens >= 60
    assert f"{plan.skipped_tokens:,} of 2,100 tokens" in said.problem
    again, _ = check(cache, packed, typed(said, "seq_len"), "num_steps=12")
    assert "skipped_tokens" not in again


@pytest.fixture(scope="module")
def with_bos(folder) -> str:
    """A tokenizer whose own template puts ``<s>`` before a text."""
    words = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "[UNK]": 4}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "text.jsonl").write_text(
        "\n".join(json.dumps({"text": "a b " * 30}) for _ in range(40))
    )
    return str(folder / "tokenizer.json")


def test_a_start_token_that_the_build_did_not_add_is_said(folder, with_bos):
    source = headrace.SourceConfig([str(folder / "text.jsonl")])
    plain, framed = str(folder / "plain"), str(folder / "framed")
    headrace.build_cache(source, headrace.TokenizerConfig(with_bos), plain, progress=False)
    found, plan = check(plain)
    said = found["no_bos"]
    assert said.field == "components.a.cache"
    assert plan.missing_bos == "<s>"
    bos = re.search(r"--bos '(\S+)'", said.cure)
    assert bos, said.cure
    tokenizer = headrace.TokenizerConfig(with_bos, bos=bos[1])
    headrace.build_cache(source, tokenizer, framed, progress=False)
    assert "no_bos" not in check(framed)[0]


def test_the_template_of_chats_is_what_can_begin_with_it(folder, with_bos):
    Path(with_bos).with_name("tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    chats = [{"messages": [{"role": "user", "content": "a b"}]} for _ in range(60)]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    body = "{% for m in messages %}{% generation %}{{ m.content }} {% endgeneration %}{% endfor %}"
    for begin in ("", "{{ bos_token }}"):
        source = headrace.SourceConfig(
            [str(folder / "chats.jsonl")],
            kind="chat",
            chat=ChatConfig(template=begin + body),
        )
        path = str(folder / f"chats-{len(begin)}")
        headrace.build_cache(source, headrace.TokenizerConfig(with_bos), path, progress=False)
        found, _ = check(path, "seq_len=8", "components.a.packing={}")
        assert ("no_bos" in found) == (not begin)
        if found.get("no_bos"):
            assert "{{ bos_token }}" in found["no_bos"].cure
