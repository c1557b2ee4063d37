"""Counters in the hands of other libraries: what is written is read back with those libraries."""

import sys
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.feed import DataLoader, LogStats, prometheus, tensorboard, wandb_run
from headrace.testing import tiny_cache


@pytest.fixture
def loader():
    from headrace.data import TokenSeqDataset

    with DataLoader(TokenSeqDataset(tiny_cache(), 8).shuffle(0), batch_size=8) as loader:
        yield loader


def test_figures_are_written_every_so_many_steps_and_are_those_of_the_loader(loader):
    written = []
    log = LogStats(
        loader,
        lambda step, figures: written.append((step, dict(figures))),
        every=2,
        prefix="input/",
    )
    taken = 0
    for step, _ in enumerate(loader):
        taken += 1
        log(step)
        if step % 2 == 0:
            assert written[-1][0] == step
            assert written[-1][1]["input/batches"] == taken
    assert [step for step, _ in written] == list(range(0, taken, 2))
    figures = written[-1][1]
    assert figures["input/examples_requested"] >= 8 * taken - 8
    assert set(figures) == {f"input/{name}" for name in loader.stats().to_dict()}
    assert all(type(value) is float for value in figures.values())


def test_a_run_that_begins_late_is_logged_from_its_first_step(loader):
    steps = []
    log = LogStats(loader, lambda step, figures: steps.append(step), every=10)
    for step in range(1003, 1030):
        log(step)
    assert steps == [1003, 1013, 1023]


def test_every_must_be_positive(loader):
    with pytest.raises(ConfigError, match="every"):
        LogStats(loader, every=0)


def test_tensorboard_reads_what_was_written(tmp_path, loader):
    from tensorboardX import SummaryWriter
    from tensorboardX.proto import event_pb2

    event_type: Any = vars(event_pb2)["Event"]
    next(iter(loader))
    LogStats(loader, tensorboard(tmp_path / "made"))(7)
    with SummaryWriter(str(tmp_path / "given")) as writer:
        LogStats(loader, tensorboard(writer))(7)
    assert list((tmp_path / "made").iterdir())
    (file,) = (tmp_path / "given").iterdir()
    found = {}
    for event in map(event_type.FromString, records(file.read_bytes())):
        found |= {value.tag: (event.step, value.simple_value) for value in event.summary.value}
    assert set(found) == {f"data/{name}" for name in loader.stats().to_dict()}
    assert found["data/batches"] == (7, 1.0)


def records(data):
    """The payloads of a TFRecord file: length (8 bytes), its checksum (4), payload, its checksum
    (4).
    """
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        yield data[at + 12 : at + 12 + size]
        at += 16 + size


def test_any_writer_with_add_scalar_will_do(loader):
    class Writer:
        def __init__(self):
            self.scalars = []

        def add_scalar(self, name, value, step):
            self.scalars.append((name, value, step))

        def flush(self):
            self.flushed = True

    writer = Writer()
    LogStats(loader, tensorboard(writer))(3)
    assert writer.flushed
    assert ("data/batches", 0.0, 3) in writer.scalars


def test_prometheus_scrapes_the_last_figures_with_their_labels(loader):
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    log = LogStats(loader, prometheus(registry, {"host": "3"}), every=1)
    log(1)
    for step, _ in zip((2, 3), loader, strict=False):
        log(step)
    page = generate_latest(registry).decode()
    assert 'headrace_data_batches{host="3"} 2.0' in page
    assert 'headrace_step{host="3"} 3.0' in page


def test_a_wandb_run_gets_the_figures_under_the_step(tmp_path, loader, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=tmp_path) as run:
        log = LogStats(loader, wandb_run(run), every=1)
        log(12)
        log(13)  # the library keeps a step open until the next, for what others log
        assert run.summary["data/batches"] == 0.0
        assert run.summary["_step"] == 12
        assert set(loader.stats().to_dict()) <= {
            name.removeprefix("data/")
            for name in run.summary.keys()  # noqa: SIM118
        }


def test_no_wandb_run_is_an_error_that_says_what_to_call(monkeypatch):
    import wandb

    monkeypatch.setattr(wandb, "run", None)
    with pytest.raises(ConfigError, match=r"wandb\.init"):
        wandb_run()


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("tensorboardX", lambda: tensorboard("runs"), "tensorboard"),
        ("prometheus_client", prometheus, "prometheus"),
        ("wandb", wandb_run, "wandb"),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch, module, make, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"headrace\[{extra}\]"):
        make()
