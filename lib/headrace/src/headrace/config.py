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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from headrace.component_config import ComponentConfig
from headrace.config_parsing import decode, dump, read_mapping, with_overrides
from headrace.errors import ConfigError, did_you_mean
from headrace.index.budgets import check_component_budgets, check_epochs, tightest_bounds
from headrace.index.limits import STOP_STRATEGIES
from headrace.index.packing_config import check_packing
from headrace.index.phases import phase_lengths
from headrace.index.policies import POLICIES
from headrace.index.residency import checked_budget
from headrace.index.schedule import BatchSchedule, weight_from_config
from headrace.index.seeds import derive
from headrace.index.shuffle_config import BlockShuffleConfig, BraidShuffleConfig, ShuffleConfig, check_shuffle
from headrace.index.stage_config import (
    AmendmentConfig,
    StageConfig,
    check_plan,
    resolve_stages,
    run_steps,
    smooth_plan,
    stages_of_plan,
)
from headrace.index.stages import Stage
from headrace.index.validation_config import ValidationConfig
from headrace.ingest.build import build_cache
from headrace.ingest.same_tokenizer import check_one_tokenizer
from headrace.ingest.tokenize import TokenizerConfig, load_tokenizer
from headrace.store.cache import TokenCache
from headrace.store.ledger import read_ledger
from headrace.store.levanter_layout import is_levanter

if TYPE_CHECKING:  # jax comes in with these; a config can be read and checked without it
    from jax.sharding import Mesh, NamedSharding

    from headrace.data.accounts import Account
    from headrace.data.batch import PackedBatch
    from headrace.data.dataset import PlannedDataset
    from headrace.data.mixture import MixtureDataset
    from headrace.data.packing import PackedTokenDataset
    from headrace.data.phased import PhasedDataset
    from headrace.data.token_seq import TokenSeqDataset
    from headrace.feed.loader import DataLoader


@dataclass(frozen=True)
class LmDataConfig:
    """The data of a run. All that determines its batches, and how they are loaded.

    Attributes:
        components: Sources by name.
        seq_len: Tokens in a row, or ``{step: tokens}``: each source then goes on with what no row has touched; see
            :mod:`headrace.index.phases`.
        batch_size: Rows of the global batch, or ``{step: rows}``.
        seed: Integer seed of all shuffles.
        shuffle: How components are shuffled; see ``ShuffleConfig``.
        weights: Instead of the components' own: a nested blend, ``{web: {weight: 3, blend: {cc: 1, wiki: 2}}, code:
            1}``; or from the sizes of the sources: ``{temperature: 2}``, ``{unimax: 4}`` (index/size_weights.py).
        unit: What weights count, ``examples`` or ``tokens``. All rows of a step have one length, so that both mean the
            same batches, also where ``seq_len`` changes.
        stages: Instead of weights: mixtures that follow each other. Those of ``policy: swrr`` follow each other as
            nmoe's do, at the example.
        amendments: Changes to the mixture that a resumed run declares.
        num_steps: Steps of the run, after which the loader ends; None: as many as are asked for, or until the tokens
            of the last stage are used up. Not part of the run's fingerprint: a run may be prolonged.
        max_epochs: Most passes over each component that does not say otherwise.
        stop_strategy: ``restart``, ``first_exhausted`` or ``all_exhausted``.
        policy: ``quota``, or the sequence of another system; see :mod:`headrace.index.policies`.
        validation: What is held out of every component; None: nothing.
        tokenizer: Tokenizer of the caches; None: the one that they were built with, which must be one. Levanter's
            caches do not keep theirs: of them it is believed, as far as ids and ends of documents allow.
        split_documents: Whether attention and labels stay within documents.
        row_order: ``locality`` or ``stream``: order of rows within a batch.
        prefetch_bytes: Memory for reading ahead, on each host.

    Raises:
        ConfigError: a value is not usable; the field is named.
    """

    components: dict[str, ComponentConfig] = field(default_factory=dict[str, ComponentConfig])
    seq_len: int | dict[int, int] = 2048
    batch_size: int | dict[int, int] = 32
    seed: int = 0
    shuffle: ShuffleConfig = field(default_factory=BraidShuffleConfig)
    weights: dict[str, Any] | None = None
    unit: Literal["examples", "tokens"] = "examples"
    stages: list[StageConfig] = field(default_factory=list[StageConfig])
    amendments: list[AmendmentConfig] = field(default_factory=list[AmendmentConfig])
    num_steps: int | None = None
    max_epochs: float | None = None
    stop_strategy: str = "restart"
    policy: str = "quota"
    validation: ValidationConfig | None = None
    tokenizer: TokenizerConfig | None = None
    split_documents: bool = False
    row_order: str = "locality"
    prefetch_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        self._check_phases()
        checked_budget(self.prefetch_bytes)
        for name, known in (
            ("row_order", ("locality", "stream")),
            ("stop_strategy", STOP_STRATEGIES),
            ("policy", POLICIES),
            ("unit", ("examples", "tokens")),
        ):
            value = getattr(self, name)
            if value not in known:
                raise ConfigError("is not one of those", field=name, value=value, cure=did_you_mean(value, known))
        BatchSchedule(self.batch_size)
        derive(self.seed)
        check_shuffle(self.shuffle, "shuffle")
        packing = {name: component.packing for name, component in self.components.items()}
        check_packing(packing, phases=len(self.phases), split_documents=self.split_documents)
        for name, component in self.components.items():
            if component.weight is not None:
                weight_from_config(component.weight, f"components.{name}.weight")
            if component.shuffle is not None:
                check_shuffle(component.shuffle, f"components.{name}.shuffle")
            check_component_budgets(
                f"components.{name}",
                component.max_epochs,
                component.max_tokens,
                component.max_share,
                self.phases[0][1],
            )
        check_epochs("max_epochs", self.max_epochs)
        check_plan(self.stages, self.amendments)
        run_steps(self.num_steps, self.stages, self.amendments, BatchSchedule(self.batch_size), self.phases)

    @property
    def phases(self) -> tuple[tuple[int, int], ...]:
        """First step and row length of each phase; one, unless ``seq_len`` changes."""
        return phase_lengths(self.seq_len)

    @property
    def run_steps(self) -> int | None:
        """Steps of the run, from ``num_steps`` or the tokens of the last stage; None if neither says."""
        return run_steps(self.num_steps, self.stages, self.amendments, BatchSchedule(self.batch_size), self.phases)

    def _check_phases(self) -> None:
        if len(self.phases) == 1:
            return
        problem, cure = "does not go with a seq_len that changes", "Use restart, with max_epochs or max_tokens."
        if self.stop_strategy != "restart":
            raise ConfigError(problem, field="stop_strategy", value=self.stop_strategy, cure=cure)
        if self._smooth:
            raise ConfigError(problem, field="policy", value=self.policy, cure="Use policy: quota with stages.")

    @property
    def _smooth(self) -> bool:
        return self.policy == "swrr" and bool(self.stages)

    def resolved_stages(self, instead: Mapping[str, TokenCache] | None = None) -> list[Stage]:
        """The mixtures of the run, in order, amendments included.

        Args:
            instead: As in :meth:`open_caches`; caches are opened only where weights follow from sizes.

        Raises:
            ConfigError: weights given in two places, an unknown source, an amendment out of order.
        """
        if self._smooth:
            self._check_smooth()
            plan = smooth_plan(self.stages, [*self.components], self.phases[0][1])
            return stages_of_plan(plan, BatchSchedule(self.batch_size))
        return resolve_stages(
            {name: component.weight for name, component in self.components.items()},
            self.weights,
            self.stages,
            self.amendments,
            batch=BatchSchedule(self.batch_size),
            phases=self.phases,
            max_share={n: c.max_share for n, c in self.components.items() if c.max_share is not None},
            sizes=lambda: {n: len(d) * d.seq_len for n, d in self.train_datasets(instead).items()},
            num_steps=self.run_steps,
        )

    def _check_smooth(self) -> None:
        for name, component in self.components.items():
            for field_ in ("weight", "max_share"):
                if getattr(component, field_) is not None:
                    path = f"components.{name}.{field_}"
                    raise ConfigError("does not go with stages of policy swrr", field=path, cure="Use policy: quota.")
        if self.amendments:
            raise ConfigError(
                "do not go with stages of policy swrr", field="amendments", cure="Use policy: quota with stages."
            )

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
                if ledger is None and not is_levanter(component.cache):
                    raise ConfigError(
                        "does not exist, and there is no source to build it from",
                        field=f"components.{name}.cache",
                        value=component.cache,
                        cure=f"Add components.{name}.source, or: headrace build SOURCE -t FILE -o {component.cache}",
                    )
                continue  # begun by hand: opening it says how to finish
            build_cache(component.source, self.tokenizer or TokenizerConfig(), component.cache, progress=progress)

    def open_caches(self, instead: Mapping[str, TokenCache] | None = None) -> dict[str, TokenCache]:
        """The caches of all components.

        Args:
            instead: Open caches to take in place of those at the components' paths, by name.

        Raises:
            CacheError: one is missing, unfinished or unreadable.
            ConfigError: they were built with different tokenizers, or with another one than the config names.
        """
        if not self.components:
            raise ConfigError("is empty", field="components", cure="Name at least one: {code: {cache: PATH}}.")
        given = dict(instead or {})
        for name in given:
            if name not in self.components:
                raise ConfigError("is not a component", field=name, cure=did_you_mean(name, self.components))
        caches = {n: TokenCache.open(c.cache) for n, c in self.components.items() if n not in given}
        if caches and self.tokenizer is None:
            check_one_tokenizer({name: (c.path, c.ledger.tokenizer) for name, c in caches.items()})
        elif caches and self.tokenizer is not None:
            tokenizer = load_tokenizer(self.tokenizer)
            for cache in caches.values():
                tokenizer.check_same(cache.ledger.tokenizer, cache.path)
        return {name: given.get(name) or caches[name] for name in self.components}

    @property
    def vocab_size(self) -> int:
        """Ids that the caches' tokenizers have, the most of any. Raises what :meth:`open_caches` does."""
        return max(cache.vocab_size for cache in self.open_caches().values())

    def datasets(
        self, instead: Mapping[str, TokenCache] | None = None
    ) -> dict[str, TokenSeqDataset | PackedTokenDataset]:
        """The components as they are stored, without the documents to leave out, in rows of the first phase; before
        they are split, shuffled and mixed. ``instead`` as in :meth:`open_caches`.
        """
        from headrace.data.stored_rows import stored_rows

        return {
            name: stored_rows(
                cache,
                self.phases[0][1],
                name=name,
                split_documents=self.split_documents,
                packing=self.components[name].packing,
                remove=self.components[name].remove,
                remove_not_found=self.components[name].remove_not_found,
                loss_mask=self.components[name].loss_mask,
            )
            for name, cache in self.open_caches(instead).items()
        }

    def train_datasets(self, instead: Mapping[str, TokenCache] | None = None) -> dict[str, PlannedDataset]:
        """What is not held out of :meth:`datasets`."""
        return {name: self._sides(name, dataset, None)[0] for name, dataset in self.datasets(instead).items()}

    def accounts(self, instead: Mapping[str, TokenCache] | None = None) -> dict[str, Account]:
        """Where the tokens of each component go; ``instead`` as in :meth:`open_caches`."""
        from headrace.data.accounts import account

        whole = self.datasets(instead)
        sides = {name: self._sides(name, dataset, None) for name, dataset in whole.items()}
        held = self.validation is not None
        return {n: account(whole[n], train, validation if held else None) for n, (train, validation) in sides.items()}

    def validation_datasets(
        self, instead: Mapping[str, TokenCache] | None = None, *, seq_len: int | None = None
    ) -> dict[str, PlannedDataset]:
        """What is held out of :meth:`datasets`, in stored order; the same tokens whatever the shuffle.

        Args:
            instead: As in :meth:`open_caches`.
            seq_len: Tokens in a row, at most those of a block; None: as in the first phase.

        Raises:
            ConfigError: the config holds nothing out, or rows are longer than a block.
        """
        if self.validation is None:
            raise ConfigError("is not set", field="validation", cure="Write validation: {one_in: 100}.")
        return {name: self._sides(name, dataset, seq_len)[1] for name, dataset in self.datasets(instead).items()}

    def _sides(
        self, name: str, dataset: TokenSeqDataset | PackedTokenDataset, seq_len: int | None
    ) -> tuple[PlannedDataset, PlannedDataset]:
        """Train and validation side of a component."""
        from headrace.data.phased_mixture import block_of_phases
        from headrace.data.validation import split_sides

        if self.validation is None:
            return dataset, dataset
        lengths = [length for _, length in self.phases]
        stream = cast("TokenSeqDataset", dataset)  # what is packed keeps one length
        block = block_of_phases(stream, lengths, self._shuffle(name)) if len(lengths) > 1 else None
        try:
            return split_sides(dataset, self.validation, block_tokens=block, seq_len=seq_len)
        except ConfigError as error:
            problem, cure = f"does not fit component {name!r} ({error})", "Hold out more of everything, or nothing."
            raise ConfigError(problem, field="validation", cure=cure) from error

    def _shuffle(self, name: str) -> ShuffleConfig:
        own = self.components[name].shuffle
        return self.shuffle if own is None else own

    def dataset(self, instead: Mapping[str, TokenCache] | None = None) -> MixtureDataset | PhasedDataset:
        """All components, shuffled and mixed; ``instead`` as in :meth:`open_caches`."""
        from headrace.data.mixture import MixtureDataset
        from headrace.data.phased_mixture import phased_mixture
        from headrace.data.shuffle import shuffle_components
        from headrace.data.supply import require_steps

        opened = self.open_caches(instead)
        stages, batch, steps = self.resolved_stages(opened), BatchSchedule(self.batch_size), self.run_steps
        shuffles = {name: self._shuffle(name) for name in self.components}
        epochs = {n: self.max_epochs if c.max_epochs is None else c.max_epochs for n, c in self.components.items()}
        bounded = {name: most for name, most in epochs.items() if most is not None}
        tokens = {n: c.max_tokens for n, c in self.components.items() if c.max_tokens is not None}
        own = {name for name, c in self.components.items() if c.shuffle is not None}
        planned = len(stages) - len(self.amendments)
        (_, seq_len), *later = self.phases
        if later:
            dataset = phased_mixture(
                cast("dict[str, TokenSeqDataset]", self.datasets(opened)),  # what is packed keeps one length
                self.phases,
                shuffles,
                stages,
                batch,
                self.seed,
                planned=planned,
                num_steps=steps,
                validation=self.validation,
                max_epochs=bounded,
                max_tokens=tokens,
                policy=self.policy,
                own=own,
            )
        else:
            smooth = smooth_plan(self.stages, [*self.components], seq_len) if self._smooth else None
            stored = self.train_datasets(opened)
            dataset = MixtureDataset(
                shuffle_components(stored, shuffles, stages, batch, self.seed, planned=planned, own=own),
                stages if smooth is None else smooth,
                batch,
                num_steps=steps if smooth is None else self.num_steps,
                max_epochs=bounded
                if any(c.max_epochs is not None for c in self.components.values())
                else self.max_epochs,
                max_examples={name: most // seq_len for name, most in tokens.items()},
                stop_strategy=self.stop_strategy,
                policy="quota" if smooth is not None else self.policy,
            )
        if steps is not None and self.stop_strategy == "restart" and not self._smooth:
            require_steps(dataset, steps, self._bounds(bounded, tokens, opened))
        return dataset

    def _bounds(
        self, epochs: Mapping[str, float], tokens: Mapping[str, int], opened: Mapping[str, TokenCache]
    ) -> dict[str, tuple[str, float]]:
        """Field and value of the bound that holds for each bounded component."""
        sizes = {name: cache.num_tokens for name, cache in opened.items()}
        found: dict[str, tuple[str, float]] = {}
        for name, (kind, most) in tightest_bounds(epochs, tokens, sizes).items():
            own = kind == "max_tokens" or self.components[name].max_epochs is not None
            found[name] = (f"components.{name}.{kind}" if own else kind, most)
        return found

    def loader(
        self,
        mesh: Mesh | None = None,
        *,
        batch_axis: str | Sequence[str] | None = None,
        sharding: NamedSharding | None = None,
        fn: Callable[[PackedBatch], Any] | None = None,
    ) -> DataLoader:
        """A :class:`~headrace.feed.loader.DataLoader` for :meth:`dataset`, as the config has it.

        ``fn`` is what batches go through on the host; see :meth:`~headrace.data.dataset.AsyncDataset.map`.
        """
        from headrace.data.shuffle import check_open_bytes
        from headrace.feed.loader import DataLoader

        dataset = self.dataset()
        loader = DataLoader(
            dataset if fn is None else dataset.map(fn),
            mesh=mesh,
            batch_axis=batch_axis,
            sharding=sharding,
            prefetch_bytes=self.prefetch_bytes,
            row_order="locality" if self.row_order == "locality" else "stream",
        )
        shuffles = {name: self._shuffle(name) for name in self.components}
        windows = {n: s.cache_windows if isinstance(s, BlockShuffleConfig) else 1 for n, s in shuffles.items()}
        for step, _ in self.phases:
            mixture = cast("MixtureDataset", dataset.phase_at(step)[0])
            check_open_bytes(mixture.names, mixture.components, windows, loader.local_share, self.prefetch_bytes)
        return loader

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
