"""Words that a template leaves out are refused or counted; messages marked so are
not trained on.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.cli.application import application
from headrace.errors import ConfigError, SourceError
from headrace.ingest import BuildReport, ChatConfig, SourceConfig, TokenizerConfig, build_cache
from headrace.store import open_cache

# Writes users and assistants, what was thought only in the last turn, and calls only in place of a
# content.
NARROW = (
    "{% for m in messages %}{% if m.role == 'user' %}<u>{{ m.content }}</s>{% elif m.role =="
    " 'assistant' %}<a>"
    "{% generation %}{% if loop.last and m.reasoning_content %}<t>{{ m.reasoning_content }}</t>{%"
    " endif %}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{% else %}{{"
    " m.content }}"
    "{% endif %}</s>{% endgeneration %}{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{%"
    " endif %}"
)
PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ASK = {"role": "user", "content": "Q"}
ANSWER = {"role": "assistant", "content": "A"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


def build(
    folder: Path,
    record: dict[str, Any],
    template: str = NARROW,
    mask: Any = "generation",
    kind: Any = "chat",
    **settings: Any,
) -> BuildReport:
    path = folder / "a.jsonl"
    path.write_text(json.dumps(record) + "\n")
    source = SourceConfig([str(path)], kind=kind, chat=ChatConfig(template, mask), **settings)
    output = str(folder / f"cache{len(list(folder.glob('cache*')))}")
    return build_cache(source, TokenizerConfig("bytes"), output, progress=False)


def trained(report: BuildReport, document: int = 0) -> str:
    cache = open_cache(report.path)
    mask = cache.leaf("loss_mask").document(document).tolist()
    pairs = zip(cache.document(document).tolist(), mask, strict=True)
    return bytes(token for token, is_trained in pairs if is_trained and token < 256).decode()


def test_fields_that_the_template_does_not_write_are_counted_and_shown(tmp_path: Path):
    first = {**ANSWER, "reasoning_content": "R", "tokens_used": 3, "weight": 1}
    called = {**ANSWER, "content": "I call", "tool_calls": [CALL], "name": "Bob"}
    record = {
        "messages": [ASK, first, ASK, called, ASK, {**ANSWER, "reasoning_content": "R2"}],
        "tools": [CALL],
        "chat_template_kwargs": {"loud": True},
    }
    report = build(tmp_path, record)
    unused = [
        "chat_template_kwargs.loud",
        "messages[].content",
        "messages[].name",
        "messages[].reasoning_content",
        "messages[].tokens_used",
        "messages[].tool_calls[].arguments",
        "tools",
    ]
    assert report.unused_fields == dict.fromkeys(unused, 1)
    shown = CliRunner().invoke(application(), ["cache", "inspect", report.path, "--json"])
    assert json.loads(shown.output)["unused_fields"] == report.unused_fields


def test_what_the_template_writes_is_not_counted(tmp_path: Path):
    record = {"messages": [ASK, {**ANSWER, "reasoning_content": "R", "loss": True}]}
    assert build(tmp_path, record).unused_fields == {}


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        ({"role": "tool", "content": "u"}, "turn 2 (tool)"),
        ({"role": "system", "content": "Be brief", "name": "f"}, "turn 2 (system)"),
        ({"role": "assistant", "refusal": "I cannot"}, "turn 2 (assistant)"),
    ],
)
def test_a_turn_that_the_template_leaves_out_is_refused(
    tmp_path: Path, turn: dict[str, Any], said: str
):
    with pytest.raises(SourceError) as error:
        build(tmp_path, {"messages": [ASK, turn, ANSWER]})
    assert "line 1" in str(error.value)
    assert f"{said} of field 'messages'" in str(error.value)
    both = [ASK, turn, ANSWER]
    with pytest.raises(SourceError, match="of field 'chosen'"):
        build(tmp_path, {"chosen": both, "rejected": [*both[:2], ASK]}, kind="preference")
    with pytest.raises(SourceError, match="of field 'prompt'"):
        build(tmp_path, {"prompt": both[:2]}, kind="prompts")


def test_calls_that_the_template_leaves_out_are_refused(tmp_path: Path):
    record = {"messages": [ASK, {"role": "assistant", "tool_calls": [CALL]}, ANSWER]}
    with pytest.raises(SourceError, match=r"turn 2 \(assistant\)"):
        build(tmp_path, record, PLAIN, "roles")
    assert trained(build(tmp_path, record)) == "f</s>A</s>"


def test_a_turn_that_a_template_chooses_by_its_text_is_not_refused(tmp_path: Path):
    template = (
        "{% for m in messages %}{% if 'A' in m.content %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert trained(build(tmp_path, {"messages": [ANSWER]}, template, "all")) == "A"
    with pytest.raises(SourceError, match=r"turn 1 \(user\)"):
        build(tmp_path, {"messages": [ASK, ANSWER]}, template, "all")


MARKS = [{"weight": 0}, {"weight": 0.0}, {"trainable": False}, {"train": False}, {"loss": 0}]


@pytest.mark.parametrize("mark", [*MARKS, {"weight": 1, "train": False}])
def test_a_message_marked_so_is_not_trained_on(tmp_path: Path, mark: dict[str, Any]):
    silent = {"role": "assistant", "content": "no", **mark}
    record = {"messages": [ASK, silent, {**ASK, "weight": None}, {**ANSWER, "weight": 1}]}
    for mask, wanted in {
        "generation": "A</s>",
        "roles": "A</s>",
        "all": "<u>Q</s><a><u>Q</s><a>A</s>",
        "all_assistant_messages": "A</s>",
    }.items():
        assert trained(build(tmp_path, record, mask=mask)) == wanted, mask
    said = {"messages": [{**m, "weight": m.get("weight") or 0} for m in record["messages"]]}
    assert trained(build(tmp_path, said, mask="customized")) == "A</s>"
    assert build(tmp_path, record).unused_fields == {}


@pytest.mark.parametrize("template", [NARROW, PLAIN])
@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_a_pair_compares_answers_that_are_trained_on(tmp_path: Path, template: str, side: str):
    record = {"prompt": [ASK], "chosen": [ANSWER], "rejected": [{**ANSWER, "content": "B"}]}
    masked = {**record, side: [{**record[side][0], "weight": 0}]}
    with pytest.raises(SourceError, match=f"an answer in field '{side}' of which nothing"):
        build(tmp_path, masked, template, kind="preference")
    longer = {**record, side: [{**record[side][0], "weight": 0}, ASK, ANSWER]}
    report = build(tmp_path, longer, template, kind="preference")
    wanted = ["A</s>", "B</s>"]
    # Without marks in the template, all that follows the prompt is the answer.
    wanted[side == "rejected"] = "A</s>" if template == NARROW else "<user>Q</s><assistant>A</s>"
    assert [trained(report, i) for i in (0, 1)] == wanted


def test_an_empty_answer_of_a_pair_needs_an_end(tmp_path: Path):
    record = {"prompt": "Q ", "chosen": "yes", "rejected": ""}
    assert [trained(build(tmp_path, record, kind="preference"), i) for i in (0, 1)] == ["yes", ""]
    tokenizer = TokenizerConfig("bytes", eos="none")
    source = SourceConfig([str(tmp_path / "a.jsonl")], kind="preference")
    with pytest.raises(SourceError, match=r"empty answer in field 'rejected'.*--eos auto"):
        build_cache(source, tokenizer, str(tmp_path / "endless"), progress=False)


def test_a_template_that_rewrites_what_was_may_have_masked_turns(tmp_path: Path):
    silent = {**ANSWER, "content": "no", "reasoning_content": "R", "weight": 0}
    record = {"messages": [ASK, silent, ASK, {**ANSWER, "reasoning_content": "S"}]}
    assert trained(build(tmp_path, record)) == "<t>S</t>A</s>"


@pytest.mark.parametrize("mark", [{"weight": 0.5}, {"weight": "0"}, {"train": [0]}])
def test_other_marks_are_refused_with_their_place(tmp_path: Path, mark: dict[str, Any]):
    (name,) = mark
    with pytest.raises(SourceError, match=rf"messages\[1\]\.{name}"):
        build(tmp_path, {"messages": [ASK, {**ANSWER, **mark}]})


def test_a_variable_that_the_template_does_not_read_is_refused(tmp_path: Path):
    template = "{% if loud %}!{% endif %}" + PLAIN
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"messages": [ASK, ANSWER]}) + "\n")

    def made(name: str) -> BuildReport:
        chat = ChatConfig(template, "roles", variables={name: "yes"})
        source = SourceConfig([str(path)], kind="chat", chat=chat)
        output = str(tmp_path / f"cache_{name}")
        return build_cache(source, TokenizerConfig("bytes"), output, progress=False)

    with pytest.raises(ConfigError, match=r"chat\.variables\.lod.*Did you mean 'loud'"):
        made("lod")
    assert trained(made("loud")) == "A</s>"
