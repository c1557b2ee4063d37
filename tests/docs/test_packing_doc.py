"""docs/packing.md: every block runs, in order, as a reader would type it; and its picture is the
script's.
"""

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.cli import main
from headrace.config import load_config
from headrace.ingest import ChatConfig, SourceConfig, TokenizerConfig, build_cache
from headrace.testing import write_cache

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "packing.md").read_text()
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    texts = [rng.integers(1, 250, n) for n in rng.integers(5, 900, 120)]
    write_cache(str(tmp_path / "caches" / "texts"), [texts[:50], texts[50:]])
    chats = [
        {
            "messages": [
                {"role": "user", "content": "say " + "ab" * k},
                {"role": "assistant", "content": "yes " * k},
            ]
        }
        for k in range(1, 40)
    ]
    pairs = [
        {"prompt": f"how much is {k} and {k}? ", "chosen": f"{2 * k}", "rejected": f"{k}, no"}
        for k in range(40)
    ]
    for name, kind, records in (("chats", "chat", chats), ("pairs", "preference", pairs)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        chat = ChatConfig(template=TEMPLATE, mask="roles")
        source = SourceConfig([str(tmp_path / f"{name}.jsonl")], kind=kind, chat=chat)
        tokenizer = TokenizerConfig("bytes")
        build_cache(source, tokenizer, str(tmp_path / "caches" / name), progress=False)
    (micro,) = re.findall(r'```yaml title="micro.yaml"\n(.*?)```', TEXT, re.DOTALL)
    (tmp_path / "micro.yaml").write_text(micro)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_python_runs(caches: Path):
    found = blocks("python")
    assert len(found) == 5
    names: dict[str, object] = {}
    for block in found:
        exec(compile(block, "docs/packing.md", "exec"), names)


def test_the_config_loads_and_the_commands_work(caches: Path, monkeypatch, capsys):
    (config,) = blocks("yaml")
    (caches / "run.yaml").write_text(config)
    with load_config("run.yaml").loader() as loader:
        assert loader.batch_at(0).tokens.shape == (8, 512)
    said = "headrace config check micro.yaml"
    assert f"`{said}`" in TEXT
    for line in [*"".join(blocks("bash")).splitlines(), said]:
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as left:
            main()
        shown = capsys.readouterr()
        assert not left.value.code, shown.err
        assert ("Micro-batches of 1 x 1,024 tokens: " in shown.out) == ("micro.yaml" in line)


def test_the_picture_is_that_of_the_script():
    spec = importlib.util.spec_from_file_location(
        "draw_packing", ROOT / "scripts" / "draw_packing.py"
    )
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.drawing() == (ROOT / "docs" / "images" / "packing.svg").read_text()


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert target.startswith("https://") or (ROOT / "docs" / target).exists(), target
