"""Shapes in which people have conversations: each is read, or refused with options that read it
when typed.
"""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.store import open_cache

TEMPLATE = (
    "{{ mood }}"
    "{% if tools %}<tools>{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>{{"
    " m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{{ c.function.arguments | tojson"
    " }}{% endfor %}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"x": {"type": "integer"}}}}
USER = {"role": "user", "content": "Q"}
ANSWER = {"role": "assistant", "content": "A"}
HUMAN = {"from": "human", "value": "Q"}
GPT = {"from": "gpt", "value": "A"}
DIALOGUE = "\n\nHuman: Q\n\nAssistant: A"
CHAT = "<user>Q</s><assistant>A</s>"
CHAT_OPTIONS = ("--mask", "roles", "--mask-role", "assistant")


def written(folder: Path, record: dict[str, Any], format: str) -> Path:  # noqa: A002
    path = folder / f"records.{format}"
    if format == "jsonl":
        path.write_text(json.dumps(record) + "\n")
    else:
        arrow = pytest.importorskip("pyarrow")
        table = arrow.Table.from_pylist([record])
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    return path


def build(capsys: pytest.CaptureFixture[str], source: Path, *options: str) -> tuple[int, str]:
    """Status of the command, and what it says on standard error."""
    template = source.with_name("t.jinja")
    template.write_text(TEMPLATE)
    sys.argv = ["headrace", "build", str(source), "-t", "bytes", "--restart"]
    sys.argv += ["-o", str(source.with_name("cache")), *options]
    if not {"text", "tokens"}.intersection(options) and "--chat-template" not in options:
        sys.argv += ["--chat-template", str(template)]
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0), capsys.readouterr().err


def texts(source: Path) -> list[tuple[str, str]]:
    """Each document, and what of it is trained on."""
    cache = open_cache(source.with_name("cache"))
    pairs: list[tuple[str, str]] = []
    for i in range(cache.num_documents):
        ids = cache.document(i).tolist()
        mask = cache.leaf("loss_mask").document(i).tolist() if "loss_mask" in cache.leaves else ids
        trained = bytes(t for t, m in zip(ids, mask, strict=True) if t < 256 and m)
        pairs.append((bytes(t for t in ids if t < 256).decode(), trained.decode()))
    return pairs


def cure_of(said: str, alternative: int = 0) -> list[str]:
    """The options that an error names, without the one that leaves lines out."""
    advice = " ".join(said.split()).partition("Or leave such lines out")[0]
    options = re.findall(r"(?:--[a-z-]+ (?:[a-z_]+=[a-z_.]+|[a-z]+(?![a-z=]))[ .;]*)+", advice)
    return shlex.split(options[alternative].strip(" .;"))


READ: dict[str, tuple[dict[str, Any], str]] = {
    "sharegpt": ({"messages": [HUMAN, GPT]}, CHAT),
    "value for content": ({"messages": [{"role": "user", "value": "Q"}, ANSWER]}, CHAT),
    "text for content": ({"messages": [{"role": "user", "text": "Q"}, ANSWER]}, CHAT),
    "one text": ({"messages": DIALOGUE}, CHAT),
    "object of lists": (
        {"messages": {"role": ["user", "assistant"], "content": ["Q", "A"]}},
        CHAT,
    ),
    "system column": ({"system": "S", "messages": [USER, ANSWER]}, f"<system>S</s>{CHAT}"),
    "empty system column": ({"system": "", "messages": [USER, ANSWER]}, CHAT),
    "system said twice": (
        {"system": "S", "messages": [{"role": "system", "content": "S"}, USER, ANSWER]},
        f"<system>S</s>{CHAT}",
    ),
    "one tool": (
        {"tools": json.dumps(TOOL), "messages": [USER, ANSWER]},
        f"<tools>{json.dumps([TOOL])}{CHAT}",
    ),
    "tools as text": (
        {"tools": json.dumps([TOOL]), "messages": [USER, ANSWER]},
        f"<tools>{json.dumps([TOOL])}{CHAT}",
    ),
    "calls of sharegpt": (
        {
            "messages": [
                {"from": "system", "value": "S"},
                HUMAN,
                {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
                {"from": "observation", "value": "1"},
                {"from": "tool_call", "value": '[{"name": "f", "arguments": "{}"}]'},
                {"from": "tool_response", "value": "2"},
                GPT,
            ]
        },
        '<system>S</s><user>Q</s><assistant><call>f{"x": 1}</s><tool>1</s><assistant><call>f{}</s><tool>2</s>'
        "<assistant>A</s>",
    ),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_usual_shape_is_read(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    format: str,  # noqa: A002
):
    record, wanted = READ[name]
    source = written(tmp_path, record, format)
    assert build(capsys, source, "--kind", "chat", *CHAT_OPTIONS)[0] == 0
    ((text, _),) = texts(source)
    assert text == wanted


REFUSED: dict[str, tuple[str, dict[str, Any], list[tuple[str, str]]]] = {
    "sharegpt": ("chat", {"conversations": [HUMAN, GPT]}, [(CHAT, "A</s>")]),
    "dialogue": ("chat", {"conversation": DIALOGUE}, [(CHAT, "A</s>")]),
    "alpaca": (
        "chat",
        {"instruction": "Q", "input": "1", "output": "A"},
        [("<user>Q\n\n1</s><assistant>A</s>", "A</s>")],
    ),
    "completion": ("chat", {"prompt": "Q", "completion": "A"}, [(CHAT, "A</s>")]),
    "dolly": (
        "chat",
        {"instruction": "Q", "context": "", "response": "A"},
        [(CHAT, "A</s>")],
    ),
    "answer": ("chat", {"question": "Q", "answer": "A"}, [(CHAT, "A</s>")]),
    "open orca": (
        "chat",
        {"system_prompt": "S", "question": "Q", "response": "A"},
        [(f"<system>S</s>{CHAT}", "A</s>")],
    ),
    "open orca without a system": (
        "chat",
        {"system_prompt": "", "question": "Q", "response": "A"},
        [(CHAT, "A</s>")],
    ),
    "system beside sharegpt, as text": (
        "text",
        {"sys_prompt": "S", "conversations": [HUMAN, GPT]},
        [(f"<system>S</s>{CHAT}", "A</s>")],
    ),
    "chat as text": ("text", {"messages": [USER, ANSWER]}, [(CHAT, "A</s>")]),
    "sharegpt as text": ("text", {"conversations": [HUMAN, GPT]}, [(CHAT, "A</s>")]),
    "two systems": (
        "chat",
        {"system": "S", "messages": [{"role": "system", "content": "T"}, USER, ANSWER]},
        [(f"<system>T</s>{CHAT}", "A</s>")],
    ),
    "tools of words": (
        "chat",
        {"tools": "f(x) adds", "messages": [USER, ANSWER]},
        [(CHAT, "A</s>")],
    ),
    "pairs of sharegpt": (
        "preference",
        {"conversations": [HUMAN], "chosen": GPT, "rejected": {"from": "gpt", "value": "B"}},
        [(CHAT, "A</s>"), ("<user>Q</s><assistant>B</s>", "B</s>")],
    ),
    "pairs of other names": (
        "preference",
        {"prompt": "Q ", "response_chosen": "A", "response_rejected": "B"},
        [("Q A", "A"), ("Q B", "B")],
    ),
    "orca pairs": (
        "preference",
        {"system": "S", "question": "Q", "chosen": "A", "rejected": "B"},
        [
            (f"<system>S</s>{CHAT}", "A</s>"),
            ("<system>S</s><user>Q</s><assistant>B</s>", "B</s>"),
        ],
    ),
    "pairs with a system": (
        "preference",
        {"system": "S", "prompt": "Q", "chosen": "A", "rejected": "B"},
        [
            (f"<system>S</s>{CHAT}", "A</s>"),
            ("<system>S</s><user>Q</s><assistant>B</s>", "B</s>"),
        ],
    ),
    "pairs with two systems": (
        "preference",
        {
            "system": "S",
            "prompt": [{"role": "system", "content": "T"}, USER],
            "chosen": [ANSWER],
            "rejected": [ANSWER | {"content": "B"}],
        },
        [
            (f"<system>T</s>{CHAT}", "A</s>"),
            ("<system>T</s><user>Q</s><assistant>B</s>", "B</s>"),
        ],
    ),
    "prompts with a system": (
        "prompts",
        {"system": "S", "prompt": "Q"},
        [("<system>S</s><user>Q</s><assistant>", "<system>S</s><user>Q</s><assistant>")],
    ),
    "pairs with tools": (
        "preference",
        {"tools": [TOOL], "prompt": "Q", "chosen": "A", "rejected": "B"},
        [
            (f"<tools>{json.dumps([TOOL])}{CHAT}", "A</s>"),
            (f"<tools>{json.dumps([TOOL])}<user>Q</s><assistant>B</s>", "B</s>"),
        ],
    ),
    "pairs of other names with tools": (
        "preference",
        {"tools": json.dumps([TOOL]), "question": "Q", "chosen": "A", "rejected": "B"},
        [
            (f"<tools>{json.dumps([TOOL])}{CHAT}", "A</s>"),
            (f"<tools>{json.dumps([TOOL])}<user>Q</s><assistant>B</s>", "B</s>"),
        ],
    ),
    "prompts with tools and a system": (
        "prompts",
        {"system": "S", "tools": [TOOL], "prompt": "Q"},
        [(prompt := f"<tools>{json.dumps([TOOL])}<system>S</s><user>Q</s><assistant>", prompt)],
    ),
    "prompts with variables": (
        "prompts",
        {"chat_template_kwargs": {"mood": "calm"}, "prompt": "Q"},
        [("calm<user>Q</s><assistant>", "calm<user>Q</s><assistant>")],
    ),
    "question for prompt": ("prompts", {"question": "Q", "answer": "A"}, [("Q", "Q")]),
    "other ids": ("tokens", {"token_ids": [65, 66]}, [("AB", "AB")]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_shape_is_refused_with_options_that_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
):
    kind, record, wanted = REFUSED[name]
    source = written(tmp_path, record, "jsonl")
    chat_options = CHAT_OPTIONS if kind == "chat" else ()
    status, said = build(capsys, source, "--kind", kind, *chat_options)
    assert (status, "line 1" in said) == (2, True), said
    cure = cure_of(said)
    kind_options = [] if "--kind" in cure else ["--kind", kind]
    is_chat = "chat" in [*cure, *kind_options]
    options = [*kind_options, *cure, *(CHAT_OPTIONS if is_chat else ())]
    status, said = build(capsys, source, *options)
    assert status == 0, (cure, said)
    assert texts(source) == wanted


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_rejected_answer_is_not_trained_on_unless_it_is_said(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    format: str,  # noqa: A002
):
    options = ("--kind", "chat", "--field", "question=prompt", "--field", "answer=completion")
    record = {"prompt": "Q", "completion": "A"}
    source = written(tmp_path, {**record, "label": False}, format)
    status, said = build(capsys, source, *options, *CHAT_OPTIONS)
    assert (status, "holds an answer that was rejected (label: false)" in said) == (2, True)
    assert build(capsys, source, *options, *CHAT_OPTIONS, *cure_of(said))[0] == 0
    assert texts(source) == [(CHAT, "A</s>")]
    for label in (True, None, "Paris", 0):
        source = written(tmp_path, {**record, "label": label}, format)
        assert build(capsys, source, *options, *CHAT_OPTIONS)[0] == 0
        assert texts(source) == [(CHAT, "A</s>")]


ONE_PAIR = [(CHAT, "A</s>"), ("<user>Q</s><assistant>B</s>", "B</s>")]
OTHER = {"role": "assistant", "content": "B"}


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [OTHER]},
        {"prompt": "Q", "chosen": [ANSWER], "rejected": [OTHER]},
        {"prompt": [USER], "chosen": "A", "rejected": "B"},
        {"prompt": USER, "chosen": ANSWER, "rejected": OTHER},
        {"chosen": [USER, ANSWER], "rejected": [USER, OTHER]},
        {"prompt": "Q", "chosen": [USER, ANSWER], "rejected": [USER, OTHER]},
        {"prompt": [HUMAN], "chosen": GPT, "rejected": OTHER},
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_pairs_in_all_their_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record: dict[str, Any], as_json: bool
):
    if as_json:
        record = {k: json.dumps(v) if isinstance(v, list) else v for k, v in record.items()}
    source = written(tmp_path, record, "jsonl")
    status, said = build(capsys, source, "--kind", "preference")
    assert status == 0, said
    assert texts(source) == ONE_PAIR


def test_a_prompt_that_the_answers_do_not_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    record = {"prompt": "Z", "chosen": [USER, ANSWER], "rejected": [USER, OTHER]}
    source = written(tmp_path, record, "jsonl")
    status, said = build(capsys, source, "--kind", "preference")
    assert (status, "field 'prompt'" in said) == (2, True)
    assert build(capsys, source, "--kind", "preference", *cure_of(said))[0] == 0
    assert texts(source) == ONE_PAIR


SYSTEM_PAIR = [
    (f"<system>S</s>{CHAT}", "A</s>"),
    ("<system>S</s><user>Q</s><assistant>B</s>", "B</s>"),
]
SAID = {"role": "system", "content": "S"}


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [OTHER]},
        {"prompt": "Q", "chosen": [ANSWER], "rejected": [OTHER]},
        {"prompt": [USER], "chosen": "A", "rejected": "B"},
        {"chosen": [USER, ANSWER], "rejected": [USER, OTHER]},
        {"prompt": "Q", "chosen": [USER, ANSWER], "rejected": [USER, OTHER]},
        {"prompt": [SAID, USER], "chosen": [ANSWER], "rejected": [OTHER]},
        {"chosen": [SAID, USER, ANSWER], "rejected": [SAID, USER, OTHER]},
        {"prompt": json.dumps([HUMAN]), "chosen": GPT, "rejected": OTHER},
    ],
)
@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_pairs_of_messages_have_the_system_message_of_their_column(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    record: dict[str, Any],
    format: str,  # noqa: A002
):
    source = written(tmp_path, {"system": "S", **record}, format)
    status, said = build(capsys, source, "--kind", "preference")
    assert status == 0, said
    assert texts(source) == SYSTEM_PAIR
    assert "unused" not in said
    assert build(capsys, source, "--kind", "preference", "--field", "system=none")[0] == 0
    is_said = "S" in json.dumps(record)
    assert texts(source) == (SYSTEM_PAIR if is_said else ONE_PAIR)


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_named_system_makes_turns_of_every_record(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    format: str,  # noqa: A002
):
    path = written(
        tmp_path, {"instructions": "S", "question": "Q", "chosen": "A", "rejected": "B"}, format
    )
    fields = ["--field", "system=instructions", "--field", "prompt=question"]
    assert build(capsys, path, "--kind", "preference", *fields)[0] == 0
    assert texts(path) == SYSTEM_PAIR
    for empty in ("", " ", None):
        record = {"instructions": empty, "question": "Q", "chosen": "A", "rejected": "B"}
        path = written(tmp_path, record, format)
        assert build(capsys, path, "--kind", "preference", *fields)[0] == 0
        assert texts(path) == ONE_PAIR
        path = written(tmp_path, {"instructions": empty, "prompt": "Q"}, format)
        assert build(capsys, path, "--kind", "prompts", *fields[:2])[0] == 0
        assert [text for text, _ in texts(path)] == ["<user>Q</s><assistant>"]


@pytest.mark.parametrize("extras", [{"tools": [TOOL]}, {"chat_template_kwargs": {"mood": "calm"}}])
def test_what_is_for_templates_may_be_left_unused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], extras: dict[str, Any]
):
    record = {"prompt": "Q ", "chosen": "A", "rejected": "B", **extras}
    source = written(tmp_path, record, "jsonl")
    status, said = build(capsys, source, "--kind", "preference")
    assert status == 2
    assert build(capsys, source, "--kind", "preference", *cure_of(said, 1))[0] == 0
    assert texts(source) == [("Q A", "A"), ("Q B", "B")]


@pytest.mark.parametrize("empty", [[], "", "[]", None])
def test_texts_with_empty_tools_stay_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], empty: Any
):
    record = {"tools": empty, "chat_template_kwargs": {}, "prompt": "Q "}
    source = written(tmp_path, record, "jsonl")
    assert build(capsys, source, "--kind", "prompts")[0] == 0
    assert [text for text, _ in texts(source)] == ["Q "]


@pytest.mark.parametrize("empty", ["", " ", None])
def test_texts_with_an_empty_system_stay_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], empty: Any
):
    source = written(
        tmp_path, {"system": empty, "prompt": "Q ", "chosen": "A", "rejected": "B"}, "jsonl"
    )
    assert build(capsys, source, "--kind", "preference")[0] == 0
    assert texts(source) == [("Q A", "A"), ("Q B", "B")]


def test_a_system_without_a_template_asks_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    record = {"system": "S", "prompt": "Q ", "chosen": "A", "rejected": "B"}
    source = written(tmp_path, record, "jsonl")
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    arguments = ["headrace", "build", str(source), "-t", "bytes", "--restart", "--kind"]
    arguments += ["preference", "-o", str(tmp_path / "cache")]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        main()
    said = " ".join(capsys.readouterr().err.split())
    assert (end.value.code, "--field system=system --chat-template FILE" in said) == (2, True), said
    assert build(capsys, source, "--kind", "preference", "--field", "system=system")[0] == 0
    assert texts(source)[0] == ("<system>S</s><user>Q </s><assistant>A</s>", "A</s>")
    assert build(capsys, source, "--kind", "preference", "--field", "system=none")[0] == 0
    assert texts(source) == [("Q A", "A"), ("Q B", "B")]


@pytest.mark.parametrize("prompt", [[USER], json.dumps([USER]), {"from": "human", "value": "Q"}])
def test_prompts_of_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str], prompt: Any):
    source = written(tmp_path, {"prompt": prompt}, "jsonl")
    assert build(capsys, source, "--kind", "prompts")[0] == 0
    assert [text for text, _ in texts(source)] == ["<user>Q</s><assistant>"]


def test_tools_of_words_may_be_the_system_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source = written(tmp_path, {"tools": "f(x) adds", "messages": [USER, ANSWER]}, "jsonl")
    _, said = build(capsys, source, "--kind", "chat", *CHAT_OPTIONS)
    assert build(capsys, source, "--kind", "chat", *CHAT_OPTIONS, *cure_of(said, 1))[0] == 0
    assert texts(source) == [(f"<system>f(x) adds</s>{CHAT}", "A</s>")]


def test_two_dialogues_are_parted_after_their_last_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    begin = "\n\nHuman: Q\n\nAssistant: A\n\nHuman: And\n\nAssistant:"
    record = {"chosen": f"{begin} yes", "rejected": f"{begin} no"}
    source = written(tmp_path, record, "jsonl")
    assert build(capsys, source, "--kind", "preference")[0] == 0
    assert texts(source) == [(f"{begin} yes", " yes"), (f"{begin} no", " no")]
    lengths = [len(begin.encode())] * 2
    cache = open_cache(source.with_name("cache"))
    assert [int(cache.leaf("prompt_length").document(i)[0]) for i in (0, 1)] == lengths
    other = written(
        tmp_path, {**record, "rejected": f"{begin} no\n\nHuman: x\n\nAssistant: y"}, "jsonl"
    )
    status, said = build(capsys, other, "--kind", "preference")
    assert status == 2
    assert "differ before their last answers" in " ".join(said.split())


ARGUMENTS = [{"x": 1, "y": [True, None, 1.5]}, {"é": {"z": "a b"}}, {}, [1, 2]]


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("expected", ["object", "text"])
def test_arguments_may_be_an_object_or_its_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: Any, expected: str
):
    spelled = [arguments, json.dumps(arguments), json.dumps(arguments, separators=(",", ":"))]
    spelled += [json.dumps(arguments, indent=2), json.dumps(arguments, ensure_ascii=False)]
    records: list[dict[str, Any]] = []
    for given in [*spelled, *([None, ""] if arguments == {} else [])]:
        function = {"name": "f", "arguments": given}
        for call in (function, {"type": "function", "function": function, "id": "1"}):
            for calls in ([call], json.dumps([call])):
                turn = {"role": "assistant", "content": None, "tool_calls": calls}
                records.append({"messages": [USER, turn]})
    source = written(tmp_path, records[0], "jsonl")
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    options = ["--kind", "chat", *CHAT_OPTIONS]
    if expected == "text":
        text = "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls %}"
        text += "{{ c.function.name + ' ' + c.function.arguments }}{% endfor %}{% endfor %}"
        options += ["--chat-template", text]
    assert build(capsys, source, *options)[0] == 0
    made = texts(source)
    assert len(made) == len(records)
    assert set(made) == {made[0]}


OF_CALLS = "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
END_OF_CALLS = "{% endfor %};{% endfor %}"


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"u": "km", "b": True}, "b"),
        ({"u": "km", "b": [1, 2]}, "b"),
        ({"u": "km", "o": {"b": False}}, "o.b"),
    ],
)
@pytest.mark.parametrize("content", [None, ""])
@pytest.mark.parametrize("as_json", [False, True])
def test_an_argument_that_a_template_cannot_write_is_refused_with_its_place(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: dict[str, Any],
    place: str,
    content: Any,
    as_json: bool,
):
    given = json.dumps(arguments) if as_json else arguments
    turn: dict[str, Any] = {"role": "assistant", "content": content}
    turn["tool_calls"] = [{"type": "function", "function": {"name": "f", "arguments": given}}]
    source = written(tmp_path, {"messages": [USER, turn]}, "jsonl")
    path = f"c.function.arguments.{place}"
    template = f"{OF_CALLS}{{{{ c.function.arguments.u }}}}{{{{ {path} }}}}{END_OF_CALLS}"
    options = ["--kind", "chat", *CHAT_OPTIONS, "--chat-template"]
    status, said = build(capsys, source, *options, template)
    assert status == 2, said
    assert f"messages[1].tool_calls[0].function.arguments.{place}" in "".join(said.split())
    cured = template.replace(f"{{{{ {path} }}}}", f"{{{{ {path} | tojson }}}}")
    assert build(capsys, source, *options, cured)[0] == 0
    value = arguments.get("b", False)
    assert [text for text, _ in texts(source)] == [f"Q;km{json.dumps(value)};"]


@pytest.mark.parametrize(
    ("written_call", "wanted"),
    [
        ("{{ c.function.arguments }}", '{"u": "km", "b": true}'),
        ("{{ 'f' + c.function.arguments | trim }}", 'f{"u": "km", "b": true}'),
        ("{{ c.function.arguments[:5] }}", '{"u":'),
        (
            "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}"
            "{{ c.function.arguments.b }}{% endif %}",
            '{"u": "km", "b": true}',
        ),
    ],
)
def test_arguments_are_a_text_to_templates_that_take_no_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written_call: str, wanted: str
):
    call = {"name": "f", "arguments": {"u": "km", "b": True}}
    turn: dict[str, Any] = {"role": "assistant", "content": None}
    turn["tool_calls"] = [{"type": "function", "function": call}]
    source = written(tmp_path, {"messages": [USER, turn]}, "jsonl")
    template = f"{OF_CALLS}{written_call}{END_OF_CALLS}"
    options = ["--kind", "chat", *CHAT_OPTIONS, "--chat-template", template]
    status, said = build(capsys, source, *options)
    assert status == 0, said
    assert [text for text, _ in texts(source)] == [f"Q;{wanted};"]


@pytest.mark.parametrize("value", ["f(x)", "[1]", '"f"'])
def test_a_call_that_is_none_is_refused_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
):
    record = {"messages": [HUMAN, {"from": "function_call", "value": value}]}
    status, said = build(
        capsys, written(tmp_path, record, "jsonl"), "--kind", "chat", *CHAT_OPTIONS
    )
    assert (status, "messages[1]" in said) == (2, True)


CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"type": "function", "id": "123456789", "function": {"name": "f", "arguments": {"x": 1}}}
    ],
}
NEXT = {"role": "user", "content": "And"}
TOLD = {"role": "tool", "content": "5", "tool_call_id": "123456789"}
TURNS = {
    "qwen": (
        [USER, OTHER, USER, ANSWER],
        "last_assistant_turn",
        "<think>\n\n</think>\n\nA<|end|>\n",
    ),
    "qwen with calls": (
        [USER, CALLED, TOLD, ANSWER],
        "last_assistant_message",
        "<think>\n\n</think>\n\nA<|end|>\n",
    ),
    "mistral": ([USER, OTHER, NEXT, ANSWER], "last_assistant_turn", " A</s>"),
    "mistral with calls": (
        [USER, OTHER, NEXT, CALLED, TOLD, ANSWER],
        "last_assistant_turn",
        '[CALLS] [{"name": "f", "arguments": {"x": 1}, "id": "123456789"}]</s> A</s>',
    ),
}
TEMPLATES = Path(__file__).parent / "templates"


@pytest.mark.parametrize("name", TURNS)
@pytest.mark.parametrize("mask", [CHAT_OPTIONS, ("--mask", "all_assistant_messages")])
def test_a_template_that_rewrites_earlier_turns_is_refused_with_a_mask_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, mask: tuple[str, ...]
):
    messages, advised, trained = TURNS[name]
    source = written(tmp_path, {"messages": messages, "tools": [TOOL]}, "jsonl")
    template = str(TEMPLATES / f"{name.split()[0]}.jinja")
    options = ["--kind", "chat", "--chat-template", template]
    status, said = build(capsys, source, *options, *mask)
    cure = re.findall(r"--mask \w+", " ".join(said.split()))
    assert (status, cure) == (2, [f"--mask {advised}"]), said
    assert build(capsys, source, *options, *shlex.split(cure[0]))[0] == 0
    assert [one for _, one in texts(source)] == [trained]


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        # Where the last answer is followed by a question, it is rendered otherwise, too.
        ([USER, OTHER, USER, ANSWER, USER], CHAT_OPTIONS),
        ([USER, OTHER, USER, {**ANSWER, "weight": 0}], CHAT_OPTIONS),
        ([USER, OTHER, USER, ANSWER], (*CHAT_OPTIONS, "--mask-role", "user")),
    ],
)
def test_a_mask_that_would_not_work_is_not_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    messages: list[dict[str, Any]],
    options: tuple[str, ...],
):
    source = written(tmp_path, {"messages": messages}, "jsonl")
    template = str(TEMPLATES / "qwen.jinja")
    options = ("--kind", "chat", "--chat-template", template, *options)
    status, said = build(capsys, source, *options)
    assert (status, "--mask last" in " ".join(said.split())) == (2, False), said
