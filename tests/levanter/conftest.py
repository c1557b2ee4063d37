"""What the tests of the seam to Levanter share: caches, a config, a tiny model, and a tracker that
remembers losses.
"""

import asyncio
import dataclasses
import importlib.util
import json
import warnings
from pathlib import Path
from typing import Any

import jax
import pytest

from headrace.store import open_cache
from headrace.testing import tiny_cache
from headrace_levanter.export import write_levanter

# Haliax warns of what JAX has deprecated when it is first imported, and an import that a warning ended
# leaves half a module behind for every later test: import it once, here, where warnings are not errors.
if importlib.util.find_spec("haliax"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("haliax")

SEQ_LEN = 16
BATCH = 8
VOCAB = 256


class StoppedError(BaseException):
    """What a run is stopped with: Levanter's newest release goes on where a tracker fails with an
    Exception.
    """


@pytest.fixture(scope="session")
def caches(tmp_path_factory):
    """Two caches of random documents."""
    folder = tmp_path_factory.mktemp("caches")
    for seed, name in enumerate("ab"):
        tiny_cache(folder / name, documents=400, seed=seed, vocab_size=VOCAB)
    return folder


@pytest.fixture
def data_config(caches):
    """A headrace config over both, as a mapping."""
    return {
        "seq_len": SEQ_LEN,
        "batch_size": BATCH,
        "split_documents": True,
        "components": {
            "a": {"cache": str(caches / "a"), "weight": {"linear": {0: 3, 10: 1}}},
            "b": {"cache": str(caches / "b"), "weight": 1},
        },
    }


@pytest.fixture
def jax_settings():
    """Levanter sets some of jax's settings when a run begins: put them back."""
    names = ("jax_threefry_partitionable", "jax_softmax_custom_jvp", "jax_compilation_cache_dir")
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture
def written(monkeypatch):
    """Call it to wait for the checkpoints of the trainers that were made: they are written behind
    the training.
    """
    from levanter.checkpoint import CheckpointerConfig

    made = []
    create = CheckpointerConfig.create

    def remembered(self, run_id):
        made.append(create(self, run_id))
        return made[-1]

    monkeypatch.setattr(CheckpointerConfig, "create", remembered)

    def wait():
        while made:
            made.pop().wait_until_finished()

    return wait


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory):
    """A tokenizer on disk: Levanter's Llama would fetch one from the hub to write its checkpoints
    with.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(VOCAB - 1)} | {"<eos>": VOCAB - 1}
    made = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def stock(caches, tokenizer_folder, tmp_path_factory):
    """``data`` as Levanter's users write it: two components in two stages, and one with a tag that
    is evaluated on.
    """
    folder = tmp_path_factory.mktemp("stock")
    for name in "ab":
        write_levanter(open_cache(str(caches / name)), str(folder / name / "train"))
    write_levanter(open_cache(str(caches / "b")), str(folder / "paloma" / "validation"))
    none = {"type": "url", "train_urls": [], "validation_urls": []}
    return {
        "tokenizer": tokenizer_folder,
        "cache_dir": str(folder),
        "auto_build_caches": False,
        "components": {
            "a": {"source": none},
            "b": {"source": none},
            "paloma": {"source": none, "tags": ["held-out"]},
        },
        "train_weights": [
            [0, {"a": 3.0, "b": 1.0, "paloma": 0.0}],
            [4, {"a": 1.0, "b": 3.0, "paloma": 0.0}],
        ],
    }


@pytest.fixture
def config(stock):
    """The same as Levanter's own object."""
    import draccus
    from levanter.data.text.datasets import LmDataConfig

    return draccus.decode(LmDataConfig, stock)


@pytest.fixture
def position():
    """Levanter's axis along a row."""
    from haliax import Axis

    return Axis("position", SEQ_LEN)


@pytest.fixture
def examples():
    """``examples(dataset, count)``: the first of a dataset of Levanter's."""
    return lambda dataset, count: asyncio.run(dataset.get_batch(range(count)))


@pytest.fixture
def train_config(tmp_path, tmp_path_factory, tokenizer_folder, data_config):
    """Makes configs of ``train_lm`` for a model that trains in milliseconds."""
    from levanter.callbacks.watch import WatchConfig
    from levanter.checkpoint import CheckpointerConfig
    from levanter.models.llama import LlamaConfig
    from levanter.optim.config import AdamConfig
    from levanter.trainer import TrainerConfig

    from headrace_levanter import HeadraceDataConfig, TrainLmConfig

    def make(
        log: Any, *, run: str = "run", loader: str = "headrace", steps: int = 9, data: Any = None
    ):
        base = tmp_path / "checkpoints"
        return TrainLmConfig(
            data=data or HeadraceDataConfig(data_config, tokenizer=tokenizer_folder),
            model=LlamaConfig(
                max_seq_len=SEQ_LEN,
                hidden_dim=16,
                intermediate_dim=32,
                num_layers=1,
                num_heads=2,
                num_kv_heads=2,
                tokenizer=tokenizer_folder,
            ),
            trainer=TrainerConfig(
                id=run,
                tracker=log,
                log_dir=tmp_path / "logs",
                log_jaxprs=False,
                log_xla_hlo=False,
                watch=WatchConfig(watch_targets=[]),
                train_batch_size=BATCH,
                per_device_eval_parallelism=1,
                num_train_steps=steps,
                steps_per_eval=4,
                max_eval_batches=1,
                require_accelerator=False,
                checkpointer=CheckpointerConfig(
                    base_path=str(base), save_interval=None, keep=[{"every": 3}]
                ),
                jax_compilation_cache_dir=str(tmp_path_factory.getbasetemp() / "compiled"),
            ),
            optimizer=AdamConfig(learning_rate=1e-2, warmup=0),
            loader=loader,
        )

    return make


@dataclasses.dataclass
class Recording:
    """What a run logged."""

    losses: dict[int, float] = dataclasses.field(default_factory=dict)
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    stop_at: int | None = None


@pytest.fixture(scope="session")
def recording():
    """Makes a tracker config and the record that it fills."""
    from levanter.tracker import Tracker, TrackerConfig

    class RecordingTracker(Tracker):
        name = "recording"

        def __init__(self, record: Recording) -> None:
            self.record = record

        def log_hyperparameters(self, hparams):
            json.dumps(hparams, default=str)

        def log(self, metrics, *, step, commit=None):
            if "train/loss" in metrics:
                self.record.losses[int(step)] = float(metrics["train/loss"])
                if step == self.record.stop_at:
                    raise StoppedError

        def log_summary(self, metrics): ...

        def log_artifact(self, artifact_path, *, name=None, type=None):  # noqa: A002
            self.record.files[name] = Path(artifact_path).read_text()

        def finish(self): ...

    @TrackerConfig.register_subclass("recording")
    @dataclasses.dataclass
    class RecordingConfig(TrackerConfig):
        record: Any = None

        def init(self, run_id):
            return RecordingTracker(self.record)

    def make(stop_at=None):
        record = Recording(stop_at=stop_at)
        return record, RecordingConfig(record)

    return make
