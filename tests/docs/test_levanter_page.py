"""docs/levanter.md: its YAML trains by the command that it prints, and its Python
runs as printed.
"""

import re
from pathlib import Path

import pytest

from headrace.testing import tiny_cache

NEEDS_LEVANTER = "Levanter needs Python 3.12 or newer: .ci/run newest runs this there"


PAGE = Path(__file__).parents[2] / "docs" / "levanter.md"
_FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
OF_OTHERS = ("DeprecationWarning", "FutureWarning", "UserWarning")
pytestmark = [pytest.mark.filterwarnings(f"ignore::{w}") for w in OF_OTHERS]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """What the page takes for granted: two caches and a tokenizer; and its own files."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    for seed, name in enumerate(("web", "code")):
        tiny_cache(tmp_path / "caches" / name, documents=2000, seed=seed)
    words = {f"w{i}": i for i in range(255)} | {"<eos>": 255}
    made = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>").save_pretrained(
        tmp_path / "tokenizer"
    )
    for language, title, text in _FENCE.findall(PAGE.read_text()):
        if language == "yaml":
            (tmp_path / title).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_page_runs_as_printed(folder):
    pytest.importorskip("levanter", reason=NEEDS_LEVANTER)
    names = {}
    blocks = [
        text for language, _, text in _FENCE.findall(PAGE.read_text()) if language == "python"
    ]
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    assert int(names["info"].step) == 0
    assert (folder / "checkpoints" / "second-run").exists()


def test_its_yaml_is_read_by_the_command(folder):
    pytest.importorskip("levanter", reason=NEEDS_LEVANTER)
    import draccus
    from haliax import Axis

    from headrace_levanter import TrainLmConfig

    assert "python -m headrace_levanter.train_lm --config_path train.yaml" in PAGE.read_text()
    config = draccus.parse(TrainLmConfig, config_path="train.yaml", args=[])
    assert len(config.data.the_tokenizer) == 256
    made = config.data.train_set(
        Axis("position", config.model.max_seq_len), config.trainer.batch_schedule
    )
    assert made.schedule.max_size == config.trainer.train_batch_size
    held_out = config.data.tagged_eval_sets(Axis("position", 128))
    assert [tags for _, tags in held_out] == [["web"]]  # code has no `validation`
