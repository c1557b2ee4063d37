"""``LmDataConfig``: the data of a training run as one document: YAML, command-line flags and Python give the same
object.

.. code-block:: yaml

    seq_len: 2048
    batch_size: {0: 256, 10000: 512}          # from step 10,000 on: 512
    tokenizer: {path: tokenizer.json}
    components:
      code: {cache: caches/code, weight: 3}
      docs: {cache: caches/docs, weight: {linear: {0: 0, 5000: 1}}}

``load_config`` reads it, ``LmDataConfig.dataset()`` mixes it, ``LmDataConfig.loader()`` loads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.config_parsing import decode, dump, read_mapping, with_overrides
from headrace.errors import ConfigError
from headrace.index.permutation import permutation_family
from headrace.index.schedule import BatchSchedule, weight_from_config
from headrace.index.seeds import derive
from headrace.ingest.build import build_cache
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import Tokenizer, TokenizerConfig, load_tokenizer
from headrace.store.cache import TokenCache
from headrace.store.ledger import read_ledger

if TYPE_CHECKING:  # jax comes in with these; a config can be read and checked without it
    from jax.sharding import Mesh

    from headrace.data.dataset import AsyncDataset
    from headrace.data.mixture import MixtureDataset
    from headrace.feed.loader import DataLoader


@dataclass(frozen=True)
class BlockShuffleConfig:
    """Hierarchical block shuffle.

    Attributes:
        io_block_size: Examples in a block; None: one stored chunk.
        window_blocks: Blocks that are mixed together. As good as a full shuffle from about the batch size on.
        perm_type: ``feistel`` or ``linear``.
    """

    io_block_size: int | None = None
    window_blocks: int = 512
    perm_type: str = "feistel"

    def __post_init__(self) -> None:
        for name in ("io_block_size", "window_blocks"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError("must be at least 1", field=f"shuffle.{name}", value=value)
        permutation_family(self.perm_type)


ShuffleConfig: TypeAlias = bool | int | BlockShuffleConfig
"""``false``: stored order; ``true``: full shuffle; a number: era shuffle of that length; or a block shuffle."""


@dataclass(frozen=True)
class ComponentConfig:
    """One source of a mixture.

    Attributes:
        cache: Path or URL of its token cache.
        weight: A number, ``{step: {step: w}}`` or ``{linear: {step: w}}``: a function of the global step.
        source: Text to build the cache from, if it does not exist (``LmDataConfig.build_caches``).
        shuffle: How this component is shuffled; None: as the config says.
    """

    cache: str
    weight: float | dict[str, Any] = 1.0
    source: SourceConfig | None = None
    shuffle: ShuffleConfig | None = None


@dataclass(frozen=True)
class LmDataConfig:
    """The data of a run. All that determines its batches, and how they are loaded.

    Attributes:
        components: Sources by name.
        seq_len: Tokens in a row.
        batch_size: Rows of the global batch, or ``{step: rows}``.
        seed: Integer seed of all shuffles.
        shuffle: How components are shuffled; see ``ShuffleConfig``.
        tokenizer: Tokenizer of the caches; None: the one that they were built with, which must be one.
        split_documents: Whether attention and labels stay within documents.
        row_order: ``locality`` or ``stream``: order of rows within a batch.
        prefetch_bytes: Memory for reading ahead, on each host.

    Raises:
        ConfigError: a value is not usable; the field is named.
    """

    components: dict[str, ComponentConfig] = field(default_factory=dict[str, ComponentConfig])
    seq_len: int = 2048
    batch_size: int | dict[int, int] = 32
    seed: int = 0
    shuffle: ShuffleConfig = field(default_factory=BlockShuffleConfig)
    tokenizer: TokenizerConfig | None = None
    split_documents: bool = False
    row_order: str = "locality"
    prefetch_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if self.seq_len < 2:
            raise ConfigError("must be at least 2", field="seq_len", value=self.seq_len, cure="Give tokens a row.")
        if self.prefetch_bytes < 1:
            raise ConfigError("must be positive", field="prefetch_bytes", value=self.prefetch_bytes, cure="In bytes.")
        if self.row_order not in ("locality", "stream"):
            raise ConfigError("is not an order", field="row_order", value=self.row_order, cure="locality or stream.")
        BatchSchedule(self.batch_size)
        derive(self.seed)
        for name, component in self.components.items():
            weight_from_config(component.weight, f"components.{name}.weight")
        _check_shuffle(self.shuffle, "shuffle")
        for name, component in self.components.items():
            if component.shuffle is not None:
                _check_shuffle(component.shuffle, f"components.{name}.shuffle")

    def build_caches(self, *, progress: bool = True) -> None:
        """Builds the caches that have a source and do not exist, and finishes those that were begun.

        Raises:
            ConfigError: a cache is missing and its component has no source.
        """
        for name, component in self.components.items():
            ledger = read_ledger(component.cache)
            if ledger is not None and ledger.finished:
                continue
            if component.source is None:
                if ledger is None:
                    raise ConfigError(
                        "does not exist, and there is no source to build it from",
                        field=f"components.{name}.cache",
                        value=component.cache,
                        cure=f"Add components.{name}.source, or run: headrace build SOURCE --output {component.cache}",
                    )
                continue  # begun by hand: opening it says how to finish
            build_cache(component.source, self.tokenizer or TokenizerConfig(), component.cache, progress=progress)

    def open_caches(self) -> dict[str, TokenCache]:
        """The caches of all components.

        Raises:
            CacheError: one is missing, unfinished or unreadable.
            ConfigError: they were built with different tokenizers, or with another one than the config names.
        """
        if not self.components:
            raise ConfigError("is empty", field="components", cure="Name at least one: {code: {cache: PATH}}.")
        caches = {name: TokenCache.open(component.cache) for name, component in self.components.items()}
        tokenizer = None if self.tokenizer is None else load_tokenizer(self.tokenizer)
        _check_tokenizers(caches, tokenizer)
        return caches

    def datasets(self) -> dict[str, AsyncDataset[Any]]:
        """The components as shuffled datasets, before mixing."""
        from headrace.data.token_seq import TokenSeqDataset

        return {
            name: shuffled(
                TokenSeqDataset(cache, self.seq_len, split_documents=self.split_documents, name=name),
                self.shuffle if self.components[name].shuffle is None else self.components[name].shuffle,
                derive(self.seed, "component", name),
            )
            for name, cache in self.open_caches().items()
        }

    def dataset(self) -> MixtureDataset:
        """All components, shuffled and mixed."""
        from headrace.data.mixture import MixtureDataset

        weights = {name: component.weight for name, component in self.components.items()}
        return MixtureDataset(self.datasets(), weights, BatchSchedule(self.batch_size))

    def loader(self, mesh: Mesh | None = None, *, batch_axis: str | Sequence[str] | None = None) -> DataLoader:
        """A loader for :meth:`dataset`; see :class:`~headrace.feed.loader.DataLoader`."""
        from headrace.feed.loader import DataLoader

        return DataLoader(
            self.dataset(),
            mesh=mesh,
            batch_axis=batch_axis,
            prefetch_bytes=self.prefetch_bytes,
            row_order="locality" if self.row_order == "locality" else "stream",
        )

    def to_yaml(self) -> str:
        """The config as YAML that ``load_config`` reads back to an equal one."""
        return dump(self)


def load_config(path: str | None = None, overrides: Sequence[str] = ()) -> LmDataConfig:
    """Reads a config from YAML, with values set over it.

    Args:
        path: YAML file; None: defaults only.
        overrides: ``dotted.name=value`` settings (also ``--dotted.name value`` pairs as they come from a command line);
            values are YAML.

    Raises:
        ConfigError: the file is missing or not YAML, a key is unknown (the nearest name is suggested), a value is of
            the wrong type; its dotted path is named.

    Example:
        >>> load_config(overrides=["seq_len=128", "components.a.cache=caches/a"]).components["a"].cache
        'caches/a'
    """
    return decode(LmDataConfig, with_overrides(read_mapping(path) if path else {}, overrides))


def shuffled(dataset: AsyncDataset[Any], shuffle: ShuffleConfig | None, seed: int) -> AsyncDataset[Any]:
    """``dataset`` in the order that a shuffle config says."""
    if isinstance(shuffle, BlockShuffleConfig):
        return dataset.block_shuffle(
            io_block_size=shuffle.io_block_size,
            window_blocks=shuffle.window_blocks,
            seed=seed,
            perm_type=shuffle.perm_type,
        )
    if shuffle is True:
        return dataset.shuffle(seed)
    return dataset.era_shuffle(shuffle, seed=seed) if shuffle else dataset


def _check_shuffle(shuffle: ShuffleConfig, path: str) -> None:
    if isinstance(shuffle, int) and not isinstance(shuffle, bool) and shuffle < 1:
        raise ConfigError(
            "is not an era length", field=path, value=shuffle, cure="false: no shuffle; true: full; N > 0: era of N."
        )


def _check_tokenizers(caches: dict[str, TokenCache], tokenizer: Tokenizer | None) -> None:
    first_name, first = next(iter(caches.items()))
    for name, cache in caches.items():
        if tokenizer is not None:
            tokenizer.check_same(cache.ledger.tokenizer, cache.path)
        elif cache.ledger.tokenizer.get("fingerprint") != first.ledger.tokenizer.get("fingerprint"):
            raise ConfigError(
                f"was built with another tokenizer than {first_name!r}",
                field=f"components.{name}.cache",
                value=cache.path,
                cure="Caches of one mixture need one tokenizer and one EOS policy: build one of them again.",
            )
