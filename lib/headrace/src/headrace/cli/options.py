"""Arguments and options that several commands share, and the parsing of their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from headrace.config.writing import CONFIG_SUFFIXES
from headrace.errors import ConfigError, check_choice

if TYPE_CHECKING:
    from headrace.config.lm_data import LmDataConfig
    from headrace.data.attributes import AttributeConfig
    from headrace.data.phased import RunDataset
    from headrace.run.lock import RunLock
    from headrace.store.cache import TokenCache
    from headrace.store.layouts import FormatConfig


def check_local_folder(output: Path) -> None:
    """Raises ConfigError if a folder that must be on this machine is given as a URL, which a path
    would swallow.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", f"{output}/"):
        cure = "Give a folder of this machine: --output FOLDER."
        raise ConfigError(
            "is a URL, and this is written on this machine only",
            field="--output",
            value=str(output).replace(":/", "://", 1),
            cure=cure,
        )


Value = TypeVar("Value")

CacheFolder = Annotated[str, typer.Argument(help="Folder or URL of the cache.", metavar="CACHE")]
Config = Annotated[str, typer.Argument(help="YAML file of an LmDataConfig.", metavar="CONFIG")]
OptionalConfig = Annotated[
    str | None, typer.Argument(help="YAML file of an LmDataConfig.", metavar="CONFIG")
]
RunFolder = Annotated[str, typer.Argument(help="Folder or URL of a run.", metavar="RUN")]
ConfigOrRun = Annotated[
    str,
    typer.Argument(help="YAML file of an LmDataConfig, or folder of a run.", metavar="CONFIG|RUN"),
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        help="Settings that override the config, e.g. batch_size=512.", metavar="[NAME=VALUE]..."
    ),
]
Hosts = Annotated[
    str | None,
    typer.Option(help="Numbers of hosts to forecast for, e.g. 1,8,64.", metavar="N,N,..."),
]
Icc = Annotated[
    list[str] | None,
    typer.Option(
        help="Share of a source's variance between its blocks; overrides a saved one (repeatable).",
        metavar="NAME=SHARE",
    ),
]
Schedule = Annotated[
    str,
    typer.Option(
        help="Learning rates of the run, for the excess loss: wsd, cosine or linear.",
        metavar="NAME",
    ),
]
Optimizer = Annotated[
    str,
    typer.Option(help="Optimizer of the run, for the excess loss: adam or sgd.", metavar="NAME"),
]
Declared = Annotated[
    bool, typer.Option("--declared", help="Use declared sizes without looking for the caches.")
]
IdLeaf = Annotated[str, typer.Option(help="Leaf that holds the ids of documents.", metavar="NAME")]
Decoder = Annotated[
    str | None,
    typer.Option(
        "--tokenizer", help="Decode with this tokenizer, if a cache has none.", metavar="FILE"
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        help="How another system's files are read: megatron, or npy,dtype=uint16,eos_id=0.",
        metavar="NAME[,SETTING=VALUE]...",
    ),
]
ID_LEAF = "id"
AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


def parse_format(text: str | None) -> FormatConfig | None:
    """Parses how another system's files are read; None if nothing is said.

    Raises:
        ConfigError: there is no such format or setting, or a value does not fit.

    Example:
        >>> parse_format("levanter,eos_id=0").eos_id
        0
    """
    from headrace.store.layouts import FormatConfig

    if text is None:
        return None
    name, *settings = text.split(",")
    values: dict[str, int | str] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        check_choice("--format", key, ("dtype", "eos_id", "vocab_size", "index"))
        is_number = key in ("eos_id", "vocab_size")
        if not value or (is_number and not value.isdecimal()):
            cure = f"Write e.g. --format {name},{key}={0 if is_number else 'uint16'}."
            raise ConfigError("has no such value", field="--format", value=setting, cure=cure)
        values[key] = int(value) if is_number else value
    return FormatConfig(name or None, **values)  # pyright: ignore[reportArgumentType]


def cache_at(path: str, format: str | None = None) -> TokenCache:  # noqa: A002 (the option's name)
    """The cache at a path, read as ``--format`` says."""
    from headrace.store.joined import open_cache

    return open_cache(path, settings=parse_format(format))


def parse_attributes(items: Sequence[str] | None) -> dict[str, AttributeConfig]:
    """Parses attributes: a name, files, and settings.

    Raises:
        ConfigError: an item is not of this form; a name is given twice.

    Example:
        >>> parse_attributes(["quality=scores/*.parquet,key=doc"])["quality"].key
        'doc'
    """
    import msgspec

    from headrace.data.attributes import AttributeConfig

    attributes: dict[str, AttributeConfig] = {}
    for item in items or []:
        name, _, source = item.partition("=")
        url, *settings = re.split(r",(?=(?:key|value|id_leaf|missing|default)=)", source)
        if not name.isidentifier() or not url or name in attributes:
            raise ConfigError(
                "is given twice" if name in attributes else "does not say NAME=FILES",
                field="--attributes",
                value=item,
                cure="Write e.g. --attributes 'quality=scores/*.parquet' or --attributes"
                " 'quality=scores/*.parquet,key=doc_id,value=score'.",
            )
        columns = dict(setting.split("=", 1) for setting in settings)
        try:
            attributes[name] = msgspec.convert(
                {"files": url, **columns}, AttributeConfig, strict=False
            )
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"has a value that does not fit ({error})",
                field="--attributes",
                value=item,
                cure="Write e.g. 'quality=scores/*.parquet,missing=0.01,default=0'.",
            ) from error
    return attributes


def parse_list(
    option: str, text: str | None, number: Callable[[str], Value], example: str
) -> list[Value] | None:
    """Parses the numbers of an option, which may stand in brackets as in a config; None if it was
    not typed.

    Raises:
        ConfigError: one is not a number.

    Example:
        >>> parse_list("--hosts", "1,8,64", int, "1,2")
        [1, 8, 64]
    """
    try:
        return None if text is None else [number(part) for part in text.strip("[]").split(",")]
    except ValueError:
        cure = f"E.g. {example}."
        raise ConfigError("is not a list of numbers", field=option, value=text, cure=cure) from None


def host_numbers(text: str | None) -> list[int] | None:
    """Parses ``--hosts``; None if it was not typed."""
    return parse_list("--hosts", text, int, "1,8,64")


def named_values(
    option: str,
    items: Iterable[str],
    read: Callable[[str], Value],
    problem: str,
    cure: str,
) -> dict[str, Value]:
    """Parses values by name, e.g. ``web=0.45``. What is no name with a value is read as ``""``.

    Raises:
        ConfigError: a name is given twice; ``read`` raised ValueError.

    Example:
        >>> named_values("--weights", ["web=2", "code=.5"], float, "is no weight", "E.g. web=2.")
        {'web': 2.0, 'code': 0.5}
    """
    values: dict[str, Value] = {}
    for item in items:
        name, _, text = item.partition("=")
        if name in values:
            raise ConfigError(
                f"names {name!r} twice", field=option, value=item, cure="Write each name once."
            )
        try:
            values[name] = read(text if name else "")
        except ValueError:
            raise ConfigError(problem, field=option, value=item, cure=cure) from None
    return values


def parse_shares(items: Sequence[str] | None, flag: str) -> dict[str, float]:
    """Parses shares from 0 to 1 of sources, by name, e.g. ``web=0.45``."""

    def share(text: str) -> float:
        if not 0 <= float(text) < 1 + 1e-9:
            raise ValueError
        return float(text)

    return named_values(flag, items or [], share, "is not a share from 0 to 1", "E.g. web=0.45.")


def typed_options(context: typer.Context) -> set[str]:
    """Names of a command's parameters that were typed."""
    return {
        name
        for name in context.params
        if str(context.get_parameter_source(name)).endswith("COMMANDLINE")
    }


def refuse_typed(
    context: typer.Context, names: Sequence[str], problem: str, cure: str = "Leave it out."
) -> None:
    """Raises ConfigError for the first of these options that was typed and would have no effect."""
    for name in names:
        if name in typed_options(context):
            field = name if name == "settings" else f"--{name.replace('_', '-')}"
            raise ConfigError(problem, field=field, value=context.params[name], cure=cure)


def open_target(
    target: str, settings: list[str] | None
) -> tuple[LmDataConfig, RunDataset, RunLock | None]:
    """The config that is named, or that of the run whose folder is, its dataset, and the lock of
    the run. Steps of a run are counted from its anchors.

    Raises:
        PlanMismatchError: with the settings, it is another run than that of the folder.
    """
    from headrace.data.dataset import BatchOrder
    from headrace.run.anchors import Anchors
    from headrace.run.lock import RunLock

    config, lock = load_target(target, settings)
    dataset = config.dataset()
    if lock is not None:
        planned = BatchOrder(dataset, row_order=config.row_order)
        lock.check_same(RunLock.of(planned).through_functions_of(lock), target)
        Anchors(target, lock, planned).use(None)
    return config, dataset, lock


def range_of_steps(option: str, text: str) -> tuple[int, int]:
    """The first step and the one after the last, typed as ``1200:1400``.

    Raises:
        ConfigError: it is none; names the ``option``.

    Example:
        >>> range_of_steps("--steps", "1200:1400")
        (1200, 1400)
    """
    first, colon, stop = text.partition(":")
    if not (colon and first.isdecimal() and stop.isdecimal() and int(first) < int(stop)):
        cure = f"Type the first step and the one after the last: {option} 1200:1400."
        raise ConfigError("is not a range of steps", field=option, value=text, cure=cure)
    return int(first), int(stop)


def lock_in(folder: str, field: str, or_else: str = "") -> RunLock:
    """The lock in a folder.

    Raises:
        ConfigError: there is none; names the ``field`` that gave the folder.
    """
    from headrace.run.lock import RunLock, no_run_in

    lock = RunLock.load(folder)
    if lock is None:
        raise no_run_in(folder, field, or_else)
    return lock


def load_target(target: str, settings: list[str] | None) -> tuple[LmDataConfig, RunLock | None]:
    """Loads a config, or the one with which the run in a folder goes on, and the run's lock.

    Raises:
        ConfigError: there is no config there; otherwise as for ``load_config``.
    """
    from headrace.config.lm_data import LmDataConfig, load_config
    from headrace.config.parsing import decode, with_overrides
    from headrace.store import files

    if target.endswith(CONFIG_SUFFIXES) or files.is_file(target):
        return load_config(target, settings or []), None
    lock = lock_in(target, "config", ", or a config (.yaml)")
    if lock.config is None:
        raise ConfigError(
            "has no config: the run was started without one",
            field="RUN",
            value=target,
            cure="Name the config of the run (.yaml).",
        )
    config = with_overrides(lock.config, settings or [], LmDataConfig)
    return decode(LmDataConfig, config), lock
