"""Every command but the demo answers without jax, which takes longer to import than most of them
work.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import load_config, open_run
from headrace.cli.application import COMMANDS

HELD_BACK = ("jax", "jaxlib", "equinox")
PROGRAM = f"""
import sys
from headrace.cli import main
for command in sys.argv[1:]:
    sys.argv = ["headrace", *command.split()]
    before = set(sys.modules)
    try:
        main()
    except SystemExit as left:
        status = left.code or 0
    else:
        status = 0
    loaded = [name for name in {HELD_BACK} if name in sys.modules and name not in before]
    print("ended", status, loaded, file=sys.stderr)
"""
RUN = """\
seed: 1
seq_len: 16
batch_size: 4
num_steps: 30
unit: trained_tokens
components:
  web: {cache: caches/web, weight: 3}
  chats: {cache: caches/chats, packing: {}}
"""
ASKED = {
    "init": "texts --output project",
    "build": "texts --output caches/new --tokenizer bytes",
    "cache inspect": "caches/web",
    "cache verify": "caches/web --deep",
    "cache diff": "caches/web caches/more",
    "cache remove": "caches/more 3",
    "cache reshuffle": "caches/web caches/mixed",
    "cache pack": "run.yaml",
    "cache consolidate": "caches/web caches/copy",
    "config check": "run.yaml --hosts 1,4",
    "config simulate": "run.yaml --hosts 1,4",
    "config show": "run.yaml",
    "config sweep": "run.yaml --arms 8 --steps 15 -o sweep",
    "config fit": "results.csv",
    "run tree": "run.yaml",
    "run where": "runs/1 --step 5",
    "run cat": "run.yaml --step 5",
    "run diff": "runs/1 edited.yaml",
    "run amend": "runs/1 edited.yaml --step 9 --going-back",
    "run blame": "runs/1 --steps 5:7",
    "run report": "runs/1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planning")
    (folder / "texts").mkdir()
    lines = [json.dumps({"text": f"line {n} of a text " * 9}) for n in range(60)]
    (folder / "texts" / "a.jsonl").write_text("\n".join(lines) + "\n")
    turns = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    (folder / "chats.jsonl").write_text(f"{json.dumps({'messages': turns})}\n" * 60)
    (folder / "template.jinja").write_text(
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    (folder / "run.yaml").write_text(RUN)
    (folder / "edited.yaml").write_text(RUN.replace("weight: 3", "weight: 4"))
    results = [f"arm_{n:02},{n / 16},{1 - n / 16},{(n / 16 - 0.4) ** 2}" for n in range(16)]
    lines = ["arm,share:web,share:chats,loss", *results]
    (folder / "results.csv").write_text("\n".join(lines) + "\n")
    bytes_to = "--tokenizer bytes --output caches"
    chats = f"{bytes_to}/chats --kind chat --chat-template template.jinja"
    ask(folder, f"build texts {bytes_to}/web", f"build texts {bytes_to}/more")
    ask(folder, f"build chats.jsonl {chats}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        open_run("runs/1", load_config("run.yaml"))
    return folder


@pytest.fixture(scope="module")
def loaded(folder: Path) -> dict[str, str]:
    """What of the held back each command loads, one after the other in one process."""
    found = ask(folder, *(f"{name} {words}" for name, words in ASKED.items()))
    return dict(zip(ASKED, found, strict=True))


def ask(folder: Path, *commands: str, statuses: tuple[str, ...] = ("0", "1")) -> list[str]:
    """What of the held back each command loads."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *commands],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    ended = [line.split(" ", 2) for line in done.stderr.splitlines() if line.startswith("ended ")]
    assert [status for _, status, _ in ended if status not in statuses] == [], done.stderr
    return [names for *_, names in ended]


def test_all_commands_are_asked():
    assert {*COMMANDS} - {*ASKED} == {"demo"}


@pytest.mark.parametrize("name", ASKED)
def test_a_command_answers_without_jax(loaded: dict[str, str], name: str):
    assert loaded[name] == "[]"


def test_a_cache_that_is_not_there_is_refused_without_jax(folder: Path):
    assert ask(folder, "cache inspect caches/missing", statuses=("2",)) == ["[]"]


def test_what_is_loaded_is_noticed():
    """The instrument of the test above."""
    program = PROGRAM.replace(
        "    try:\n", "    try:\n        import headrace.batch.packed_batch\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "ended 0 ['jax', 'jaxlib', 'equinox']"
