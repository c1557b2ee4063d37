"""The demo itself, from text to a trained model. Read :func:`run_demo` from top to bottom to follow
the data.

Text and tokenizer -> one config -> token caches -> a mixture with a scheduled weight -> a loader ->
training, stopped in the middle and resumed on half of the devices. At the end, the loader runs once
more, alone and without the stop, to show that the batches were the same.

Price: about 80 s on 2 CPU cores, of which 67 s are training.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console
from rich.markup import escape

from headrace.batch.packed_batch import PackedBatch
from headrace.config.component import ComponentConfig
from headrace.config.lm_data import LmDataConfig, load_config
from headrace.demo import corpus
from headrace.demo.checks import (
    data_alone,
    digest,
    exact_mixture,
    loss_falls,
    never_waits,
    refuses_another_order,
    same_batches,
)
from headrace.demo.screen import Check, Screen, StepLog, StepRecord
from headrace.demo.settings import DEVICES, DEVICES_AFTER, DemoFolder, DemoSettings
from headrace.demo.train import Transformer, make_optimizer, train_step
from headrace.errors import ConfigError, command_line
from headrace.feed.run_log import RunLog
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import TokenizerConfig
from headrace.numbers import short
from headrace.report.facts import gather
from headrace.report.page import write_report
from headrace.run.lock import RunLock
from headrace.run.state import LoaderState


def run_demo(settings: DemoSettings, console: Console) -> bool:
    """Runs the demo and prints what it shows.

    Returns:
        Whether all checks passed.

    Raises:
        HeadraceError: The folder cannot be used, there is no text, or jax is already running with
            too few devices.
    """
    screen = Screen(console)
    devices = cpu_devices(DEVICES)
    folder = DemoFolder.claim(settings.output)
    screen.say(f"[bold]headrace demo[/] writes to [cyan]{escape(str(folder.root))}/[/]\n")

    config = prepare(folder, settings, screen)

    stop = settings.steps // 2
    weights = {name: component.weight for name, component in config.components.items()}
    with screen.training(settings.steps) as line:
        log = StepLog(folder.metrics, weights, settings.steps, line)
        run = TrainingRun(config, settings, folder, log)
        stopped = run.train(Mesh(devices, ("data",)), until=stop)
        screen.say(
            f"[bold]stopped[/] after {stop} steps, loader closed; model and data state are in"
            f" {escape(str(stopped))}/"
        )
        screen.say(f"[bold]resumed[/] with a new loader, on {DEVICES_AFTER} devices")
        run.train(Mesh(devices[:DEVICES_AFTER], ("data",)), until=settings.steps, resume=stopped)
        line.details.append(f"{settings.steps} steps, {log.tokens_per_s:,.0f} tokens/s")

    with screen.phase("check") as details:
        one_device = Mesh(devices[:1], ("data",))
        digests, data_tokens_per_s = data_alone(config, one_device, settings.steps)
        details.append(
            f"the data once more, alone and without the stop: {data_tokens_per_s:,.0f} tokens/s"
        )
        checks = [
            loss_falls(log),
            same_batches(log, digests),
            exact_mixture(log),
            never_waits(log, data_tokens_per_s),
            refuses_another_order(config, one_device, load_data_state(stopped)),
        ]
    with screen.phase("report"):
        facts = gather(str(folder.root), [f"num_steps={settings.steps}"])
        write_report(facts, str(folder.report))

    passed = all(check.passed for check in checks if check.decides)
    summary = {
        "passed": passed,
        "checks": [asdict(check) for check in checks],
        "seconds": screen.seconds,
        "tokens_per_s": {"training": log.tokens_per_s, "data_alone": data_tokens_per_s},
        "settings": {**asdict(settings), "output": str(settings.output)},
    }
    folder.summary.write_text(json.dumps(summary, indent=1) + "\n")
    show_end(screen, folder, checks)
    return passed


def prepare(folder: DemoFolder, settings: DemoSettings, screen: Screen) -> LmDataConfig:
    """Everything before training: text, tokenizer, config and the caches that it names."""
    with screen.phase("text") as details:
        sources = corpus.standard_library(settings.scale.max_chars)
        for name, source in sources.items():
            corpus.write_jsonl(source.documents, corpus.text_file(folder.text, name))
            details.append(
                f"{name}: {len(source.documents)} documents, {short(source.chars)} characters,"
                f" {source.origin}"
            )
    with screen.phase("tokenizer") as details:
        texts = [corpus.text_file(folder.text, name) for name in sources]
        corpus.train_bpe(texts, folder.tokenizer, vocab_size=settings.scale.vocab_size)
        details.append(f"byte-level BPE, {settings.scale.vocab_size} entries")
    folder.config.write_text(data_config(folder, sources, settings).to_yaml())
    # From here on, the file is the only description of the data.
    config = load_config(str(folder.config))
    with screen.phase("caches") as details:
        config.build_caches(progress=False)
        details.append(
            ", ".join(
                f"{n} {cache.num_tokens:,} tokens" for n, cache in config.open_caches().items()
            )
        )
    screen.say()
    return config


def show_end(screen: Screen, folder: DemoFolder, checks: Sequence[Check]) -> None:
    """Prints the checks, where the results are, and what to type next."""
    screen.say(f"\n[bold]What was shown[/] in {sum(screen.seconds.values()):.0f} s")
    screen.show_checks(checks)
    screen.say(f"\n[bold]What is left[/] in {escape(str(folder.root))}/")
    screen.show_pairs(
        [
            (folder.report.name, "loss, mixture, reads and waiting over the steps, for a browser"),
            (folder.config.name, "the data of this run: copy it for yours"),
            (folder.metrics.name, "loss, rows, waiting and batch digest of each step"),
            (folder.summary.name, "this table, with the times of all phases"),
            (
                f"{folder.caches.name}/, {folder.checkpoints.name}/",
                "token caches; model, optimizer and data state",
            ),
        ]
    )
    screen.say("\n[bold]What to type next[/]")
    inspect = command_line("cache inspect", folder.caches / "docs")
    cat = command_line("run cat", folder.config, step=12, row=0)
    if "UV" in os.environ:  # started by uv, whose environment the shell does not know
        program = shlex.quote(os.path.relpath(sys.argv[0]))
        inspect, cat = (program + line.removeprefix("headrace") for line in (inspect, cat))
    screen.show_pairs(
        [
            (inspect, "what is in a token cache"),
            (cat, "what the model saw at a step, and where it comes from"),
        ]
    )


def cpu_devices(count: int) -> np.ndarray:
    """Makes jax run on ``count`` CPU devices, whatever the machine has. Call it before anything
    else uses jax.

    Raises:
        ConfigError: jax is already running with fewer.
    """
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # jax runs already
        pass
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise ConfigError(
            f"are needed, and jax runs already with {len(devices)}",
            field="devices",
            value=count,
            cure="Start the demo in a process of its own: headrace demo",
        )
    return np.array(devices[:count])


def data_config(folder: DemoFolder, sources: Iterable[str], settings: DemoSettings) -> LmDataConfig:
    """The data of the run in one config: what is read, in which order, in which mixture."""
    ramp = {"linear": {0: 0.1, settings.steps - 1: 2.0}}
    components = {
        name: ComponentConfig(
            cache=str(folder.caches / name),
            weight=ramp if name == "docs" else 1.0,
            source=SourceConfig([str(corpus.text_file(folder.text, name))]),
        )
        for name in sources
    }
    return LmDataConfig(
        components=components,
        seq_len=settings.scale.seq_len,
        batch_size=settings.scale.batch_size,
        tokenizer=TokenizerConfig(str(folder.tokenizer), eos=corpus.END_OF_TEXT),
        split_documents=True,
    )


@dataclass(frozen=True)
class TrainingRun:
    """Trains from one checkpoint to the next, with a record of each step in the log."""

    config: LmDataConfig
    settings: DemoSettings
    folder: DemoFolder
    log: StepLog

    def train(self, mesh: Mesh, *, until: int, resume: Path | None = None) -> Path:
        """Trains on ``mesh`` up to step ``until``, from the beginning or from where ``resume``
        stopped.

        Returns:
            The folder of the new checkpoint.

        Raises:
            PlanMismatchError: ``resume`` was made with other data or another order.
        """
        optimizer = make_optimizer(self.settings.steps, peak_lr=self.settings.scale.peak_lr)
        with self.config.loader(mesh) as loader:
            lock = RunLock.of(loader)
            if resume is None:
                model, opt_state, start = *self._initial(optimizer), 0
            else:
                shapes = eqx.filter_eval_shape(self._initial, optimizer)
                model, opt_state = eqx.tree_deserialise_leaves(resume / "model.eqx", shapes)
                state = load_data_state(resume)
                lock.check(state)
                start = state.step
            everywhere = NamedSharding(mesh, PartitionSpec())
            model, opt_state = eqx.filter_shard((model, opt_state), everywhere)

            run_log = RunLog(loader, self.folder.root, config=self.config)
            with run_log, loader.iter_from_step(start) as batches:
                for step in range(start, until):
                    asked_at = time.perf_counter()
                    batch = next(batches)
                    came = time.perf_counter()
                    model, opt_state, loss = train_step(model, opt_state, optimizer, batch)
                    loss = float(loss)  # waits for the devices
                    trained = time.perf_counter()
                    record = StepRecord(
                        step=step,
                        loss=loss,
                        devices=mesh.size,
                        wait_s=came - asked_at,
                        train_s=trained - came,
                        tokens=batch.token_ids.size,
                        rows=rows_by_source(batch, self.log.names),
                        reads_per_example=loader.stats().reads.reads_per_example,
                        digest=digest(batch),
                    )
                    self.log.add(record)
                    run_log(step, train={"loss": loss})
        return self._save(model, opt_state, lock, until)

    def _initial(
        self, optimizer: optax.GradientTransformation
    ) -> tuple[Transformer, optax.OptState]:
        scale = self.settings.scale
        key = jax.random.key(0)
        model = Transformer(
            scale.vocab_size, dim=scale.dim, layers=scale.layers, heads=scale.heads, key=key
        )
        return model, optimizer.init(eqx.filter(model, eqx.is_array))

    def _save(
        self, model: Transformer, opt_state: optax.OptState, lock: RunLock, step: int
    ) -> Path:
        folder = self.folder.checkpoints / f"step-{step}"
        folder.mkdir(parents=True)
        eqx.tree_serialise_leaves(folder / "model.eqx", (model, opt_state))
        lock.save(str(folder))
        (folder / "data.json").write_text(json.dumps(lock.state(step).to_dict()) + "\n")
        return folder


def load_data_state(checkpoint: Path) -> LoaderState:
    """The state of the data: a step and the fingerprint of the run, all that the loader needs."""
    return LoaderState.from_dict(json.loads((checkpoint / "data.json").read_text()))


def rows_by_source(batch: PackedBatch, names: Sequence[str]) -> dict[str, int]:
    """How many rows of a batch came from each source."""
    counts = np.bincount(np.asarray(batch.source_id)[np.asarray(batch.valid)], minlength=len(names))
    return {name: int(count) for name, count in zip(names, counts, strict=True)}
