"""``python -m headrace_levanter.train_lm --config_path run.yaml``: Levanter's ``train_lm`` on
headrace's data.

The file is a Levanter config. Its ``data`` is Levanter's own, or names a headrace config
(:class:`~headrace_levanter.config.HeadraceDataConfig`). ``loader``
selects the loader that reads it. Levanter makes checkpoints, evaluates, tracks and resumes.

No ``from __future__ import annotations`` here: Levanter reads the types from :func:`main`.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, Literal

try:
    import levanter.config
    from draccus.utils import DecodingError, ParsingError
    from levanter.main import train_lm
except ImportError as error:
    from headrace_levanter.needs import of_levanter, wrong_levanter

    if __name__ != "__main__" or not of_levanter(error):
        raise
    sys.exit(str(wrong_levanter(error, "headrace_levanter.train_lm")))

from headrace.config.parsing import read_mapping
from headrace.errors import ConfigError
from headrace_levanter.config import HeadraceDataConfig
from headrace_levanter.drop_in import fed
from headrace_levanter.loader import headrace_schedule, recorded_loader
from headrace_levanter.translation.translate import stages_of


@dataclasses.dataclass
class TrainLmConfig(train_lm.TrainLmConfig):
    """Levanter's ``TrainLmConfig`` with headrace's data.

    Attributes:
        data: The data.
        loader: ``headrace``: headrace's own loader feeds the trainer; ``levanter``: Levanter's
            loader reads one example at a time. Both deliver the same batches.
    """

    data: HeadraceDataConfig = dataclasses.field(  # pyright: ignore
        default_factory=HeadraceDataConfig
    )
    loader: Literal["headrace", "levanter"] = "headrace"


@dataclasses.dataclass
class StockConfig(train_lm.TrainLmConfig):
    """Levanter's unchanged ``TrainLmConfig``, whose data headrace delivers.

    Attributes:
        loader: As for :class:`TrainLmConfig`.
        feed: ``name=value`` settings that override the translated data config.
    """

    loader: Literal["headrace", "levanter"] = "headrace"
    feed: list[str] = dataclasses.field(default_factory=list[str])


def main(config: TrainLmConfig) -> None:
    """Trains, continuing from the run's latest checkpoint.

    A run with an id (``trainer.id``) saves its lock beside its checkpoints or in
    ``data.run_dir``. Resuming it with different data, order or mixture is refused.
    """
    if config.data.run_dir is None:
        config = dataclasses.replace(
            config, data=dataclasses.replace(config.data, run_dir=_run_dir(config))
        )
    _train(config, config.loader)


def main_of_stock(config: StockConfig) -> None:
    """Trains on the data that Levanter's own config describes; length, batch size and seed are the
    trainer's.

    Raises:
        ConfigError: a setting that determines the tokens trained on has no counterpart in headrace.
    """
    _train(with_fed_data(config, settings=config.feed), config.loader)


def with_fed_data(
    config: train_lm.TrainLmConfig, *, settings: Sequence[str] = (), run_dir: str | None = None
) -> train_lm.TrainLmConfig:
    """A Levanter training config whose data headrace delivers; length, batch size and seed are the
    trainer's.

    Args:
        config: Levanter's config; it is not changed.
        settings: ``name=value`` settings that override the translated data config.
        run_dir: Folder of the run's checkpoints, for its lock. None: the checkpointer's folder,
            if the run has an id.

    Raises:
        ConfigError: as for :func:`headrace_levanter.fed`.

    Example:
        >>> with own_loader():  # doctest: +SKIP
        ...     levanter.main.train_lm.main(with_fed_data(config))
    """
    data = fed(
        config.data,
        seq_len=config.train_seq_len or config.model.max_seq_len,
        batch_size=headrace_schedule(config.trainer.batch_schedule).to_config(),
        seed=config.trainer.seed if config.data_seed is None else config.data_seed,
        settings=settings,
        run_dir=run_dir or _run_dir(config),
    )
    return dataclasses.replace(config, data=data)


def _run_dir(config: train_lm.TrainLmConfig) -> str | None:
    trainer = config.trainer
    return None if trainer.id is None else trainer.checkpointer.expanded_path(trainer.id)


def _train(config: train_lm.TrainLmConfig, loader: Literal["headrace", "levanter"]) -> None:
    with recorded_loader(loader):
        train_lm.main(config)


def has_own_data(arguments: Sequence[str]) -> bool:
    """Whether the file after ``--config_path`` has Levanter's own data."""
    if "--configs" in arguments:
        cure = "Write one file with `data: !include DATA.yaml`, and give it as --config_path."
        raise ConfigError(
            "names several files, but only one is read here", field="--configs", cure=cure
        )
    return "config" not in (_data(arguments) or {"config": None})


def _data(arguments: Sequence[str]) -> dict[str, Any]:
    """The ``data`` of the file after ``--config_path``; empty if there is none."""
    at = next((n + 1 for n, one in enumerate(arguments) if one in ("--config_path", "--config")), 0)
    raw = read_mapping(arguments[at], foreign=True) if 0 < at < len(arguments) else {}
    return raw.get("data") or {}


def run() -> None:
    """The command line."""
    joined = ("--config_path=", "--config=")
    arguments = [
        part
        for one in sys.argv[1:]
        for part in (one.split("=", 1) if one.startswith(joined) else [one])
    ]
    entry = main_of_stock if has_own_data(arguments) else main
    try:
        levanter.config.main(entry, args=arguments)()
    except ParsingError as error:
        raise _named(error, arguments) from None


def _named(error: ParsingError, arguments: Sequence[str]) -> ConfigError:
    """The error for a setting that Levanter's reader of configs refuses.

    Raises:
        ConfigError: the data weigh what is no component, which that reader does not name.
    """
    data = _data(arguments)
    if "train_weights" in data:
        stages_of(data, data.get("components") or {}, "data.")
    field = ".".join(error.key_path) if isinstance(error, DecodingError) else ""
    option = f"--{field}"
    if option in arguments[:-1]:
        value = arguments[arguments.index(option) + 1]
        cure = "Write it as in the file of the config, a list in brackets: --feed '[seed=1]'."
        return ConfigError("is of the wrong type", field=option, value=value, cure=cure)
    problem = f"is refused: {error.__cause__ or error}"
    return ConfigError(problem, field=field or "config", cure="Correct it in the config.")


if __name__ == "__main__":
    run()
