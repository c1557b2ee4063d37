"""``HeadraceDataConfig``: a headrace config as the ``data`` of Levanter's ``TrainLmConfig``.

``train_lm`` requests four things from its data config: a tokenizer (for its length and for
evaluation), the training set, and the evaluation sets with and without tags. This class takes them
from a headrace config. Levanter neither mixes nor shuffles, so its ``data_seed`` has no effect: the
seed is that of the headrace config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import yaml
from draccus import encode
from levanter.checkpoint import discover_checkpoint_candidates
from levanter.data.passthrough_tokenizer import PassthroughTokenizer
from levanter.tokenizers import load_tokenizer

from headrace.config.lm_data import LmDataConfig, load_config
from headrace.config.parsing import decode, with_overrides
from headrace.errors import ConfigError
from headrace.run.changes import config_of_run
from headrace.run.lock import RunLock
from headrace.run.run import open_run
from headrace.store import files
from headrace_levanter.dataset import HeadraceDataset, check_whole_batches
from headrace_levanter.loader import check_schedule, headrace_schedule

_RUN_FOLDER = "headrace"


@dataclass(frozen=True)
class HeadraceDataConfig:
    """The data of a run of ``levanter.main.train_lm``, in place of Levanter's ``LmDataConfig``.

    .. code-block:: yaml

        data:
          # or the config itself: {components: ..., seq_len: 2048, batch_size: 256}
          config: data.yaml
          run_dir: gs://runs/1b/checkpoints/run-7

    Attributes:
        config: A headrace config: :class:`headrace.LmDataConfig`, the path of its YAML, or its
            content. Its ``seq_len`` and ``batch_size`` must equal the trainer's.
        settings: ``name=value`` settings that override it.
        tokenizer: Name or folder of the tokenizer that Levanter loads for evaluation and export.
            None: a stand-in with the size of the caches' vocabulary.
        run_dir: Folder of the run's checkpoints, ``checkpointer.base_path`` with the run's id. The
            run's lock is saved there; a resumed run with different data, order or mixture is
            refused, with the difference shown. None: runs are not compared.
    """

    config: Any = None
    settings: list[str] = field(default_factory=list[str])
    tokenizer: str | None = None
    run_dir: str | None = None

    @cached_property
    def resolved(self) -> LmDataConfig:
        """The headrace config.

        Raises:
            ConfigError: it is missing or invalid.
        """
        if self.config is None:
            raise ConfigError(
                "is missing", field="data.config", cure="Write data: {config: data.yaml}."
            )
        if isinstance(self.config, str):
            return load_config(self.config, self.settings)
        if isinstance(self.config, Mapping):
            return decode(LmDataConfig, with_overrides(self.config, self.settings, LmDataConfig))
        if self.settings:
            raise ConfigError(
                "go with a file or its content", field="data.settings", value=self.settings
            )
        return self.config

    @cached_property
    def the_tokenizer(self) -> Any:
        """The tokenizer that Levanter uses.

        Raises:
            ConfigError: its vocabulary is smaller than that of the caches.
        """
        vocab_size = self.resolved.vocab_size
        if self.tokenizer is None:
            return PassthroughTokenizer(vocab_size)
        tokenizer = load_tokenizer(self.tokenizer)
        if len(tokenizer) < vocab_size:
            raise ConfigError(
                f"knows {len(tokenizer)} tokens, and the caches have {vocab_size}",
                field="data.tokenizer",
                value=self.tokenizer,
            )
        return tokenizer

    def train_set(
        self, Pos: Any, batch_schedule: Any, *, key: Any = None, **ignored: Any
    ) -> HeadraceDataset:
        """The mixture, as a dataset for Levanter's loader.

        Args:
            Pos: Axis of positions; its size must be ``seq_len``.
            batch_schedule: The trainer's; must equal ``batch_size``.
            key: Levanter's key, which is ignored: the config has its own seed.
            **ignored: Arguments of other versions of Levanter.

        Raises:
            ConfigError: the trainer's batch size or length differs from the config's.
            PlanMismatchError: the run in ``run_dir`` is a different one.
        """
        config = config_beside(self.run_dir, self.resolved)
        check_length(Pos, config)
        dataset = config.dataset()
        check_schedule(dataset, None, headrace_schedule(batch_schedule))
        rows = HeadraceDataset(
            dataset,
            position_axis=Pos.name,
            row_order="locality" if config.row_order == "locality" else "stream",
            prefetch_bytes=config.prefetch_bytes,
            row_exchange=config.exchange_setting,
        )
        open_run_beside(self.run_dir, rows)
        return rows

    def validation_sets(self, Pos: Any) -> Mapping[str, HeadraceDataset]:
        """The hold-out of each component, by name; empty if the config holds nothing out."""
        if not self.resolved.held_out:
            return {}
        datasets = self.resolved.validation_datasets(seq_len=Pos.size)
        return {
            name: HeadraceDataset(dataset, 1, position_axis=Pos.name, row_order="stream")
            for name, dataset in datasets.items()
        }

    def tagged_eval_sets(self, Pos: Any) -> Sequence[tuple[HeadraceDataset, list[str]]]:
        """:meth:`validation_sets`, each with its name as tag."""
        return [(dataset, [name]) for name, dataset in self.validation_sets(Pos).items()]


def steps_done(run_dir: str) -> int:
    """Steps that are done at Levanter's latest checkpoint in a folder, which has the number of the
    last of them; 0 if there is none.
    """
    candidates = discover_checkpoint_candidates(run_dir)
    return max((candidate.step + 1 for candidate in candidates), default=0)


def config_beside(run_dir: str | None, config: LmDataConfig) -> LmDataConfig:
    """The config with which the run beside the checkpoints in a folder goes on."""
    if run_dir is None:
        return config
    return config_of_run(RunLock.load(files.join(run_dir, _RUN_FOLDER)), config)


def open_run_beside(run_dir: str | None, rows: HeadraceDataset) -> None:
    """Compares a run with the lock beside its checkpoints, and opens it for the trainer to record;
    does nothing without a folder.

    Raises:
        PlanMismatchError: the run in the folder is a different one.
    """
    if run_dir is not None:
        rows.run = open_run(files.join(run_dir, _RUN_FOLDER), rows, steps_done(run_dir))


def check_length(Pos: Any, config: LmDataConfig) -> None:
    """Raises ConfigError unless rows are as long as Levanter's position axis, and batches are not
    split.
    """
    check_whole_batches(config)
    lengths = [length for _, length in config.phases]
    if lengths != [Pos.size]:
        raise ConfigError(
            f"is {lengths[0] if len(lengths) == 1 else lengths} for headrace and {Pos.size} for"
            " Levanter",
            field="seq_len",
            cure="Write the same in seq_len and in train_seq_len (or the model's max_seq_len).",
        )


def _encoded(config: HeadraceDataConfig, declared_type: Any = None) -> dict[str, Any]:
    """The resolved config, so that the run's log has all of it."""
    data = None if config.config is None else yaml.safe_load(config.resolved.to_yaml())
    return {
        "config": data,
        "settings": [],
        "tokenizer": config.tokenizer,
        "run_dir": config.run_dir,
    }


encode.register(HeadraceDataConfig, _encoded)  # pyright: ignore[reportFunctionMemberAccess]
