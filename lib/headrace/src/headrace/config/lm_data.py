"""``LmDataConfig``: the data of a training run, as one object from YAML, command-line settings or
Python.

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

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Unpack, cast, get_args

from headrace.batch.micro_plan import MicroBatchConfig
from headrace.config.bucketed import written_out
from headrace.config.compat import CompatConfig
from headrace.config.component import (
    ByComponent,
    ComponentConfig,
    check_any,
    left_out,
    open_caches,
)
from headrace.config.parsing import decode, read_mapping, with_overrides
from headrace.config.snapshots import Settled, find_erasures, settle
from headrace.config.sources import build_caches
from headrace.config.typed import check_fields
from headrace.config.writing import FREE_FIELDS, dump
from headrace.data.async_dataset import AsyncDataset
from headrace.data.budgets import OpenBytes
from headrace.data.columns import ColumnConfig, check_column_name, columns_by_component
from headrace.data.component import (
    Account,
    Orders,
    RowScores,
    account,
    component_sides,
    shuffle_components,
    stored_rows,
    subset_side,
    too_many_hosts,
)
from headrace.data.dataset import PlannedDataset
from headrace.data.mixture import MixtureDataset, mixture_of, require_steps
from headrace.data.packed_store import StoredDataset
from headrace.data.phased import PhasedDataset, RunDataset
from headrace.data.phased_mixture import phased_dataset
from headrace.data.row_scores import row_scores
from headrace.data.row_tokens import RowTokens, counted_plan
from headrace.errors import ConfigError, check_at_least, check_choice, command_line, did_you_mean
from headrace.ingest.tokenize import TokenizerConfig
from headrace.mix.blend import is_size_rule
from headrace.mix.draws import Skips, StopStrategy
from headrace.mix.phases import phase_block
from headrace.mix.plan import (
    MixtureConfig,
    Plan,
    check_unit,
    policy_kind,
    policy_names,
    skips_of,
)
from headrace.mix.schedule import (
    BatchSchedule,
    CountedTokens,
    ExchangeSetting,
    LastBatch,
    RowOrder,
    WeightUnit,
    phase_lengths,
)
from headrace.mix.stage_config import (
    AmendmentConfig,
    StageConfig,
    check_epochs,
    check_plan,
    check_steps,
)
from headrace.order import shuffle_config
from headrace.order.holdout import ValidationConfig
from headrace.order.intervals import Intervals
from headrace.order.residency import checked_budget
from headrace.order.seeds import check_seed
from headrace.order.shuffle_config import MAX_HOSTS, BraidShuffleConfig, Shuffle, check_shuffle
from headrace.order.subset import SubsetConfig
from headrace.pack.spec import check_packing
from headrace.store.cache import TokenCache

_LOG = logging.getLogger(__name__)
_NOT_WITH_PHASES = "does not go with a seq_len that changes"

if TYPE_CHECKING:  # these import jax; a config can be read and checked without it
    from jax.sharding import Mesh, NamedSharding

    from headrace.batch.packed_batch import PackedBatch
    from headrace.feed.loader import DataLoader, LoaderOptions


@dataclass(frozen=True)
class LmDataConfig:
    """The data of a run: everything that determines its batches, and how they are loaded.

    Attributes:
        components: Sources by name.
        seq_len: Tokens in a row, or ``{step: tokens}``; see :mod:`headrace.mix.phases`.
        batch_size: Rows of the global batch, or ``{step: rows}``.
        seed: Seed of all shuffles, an integer of 64 bits, which may be negative.
        shuffle: How components are shuffled: ``{strands: N}`` or ``{budget_bytes: N}``, braided
            (the default); ``{kind: block, window_blocks: N}``; ``{by: NAME, steps: N}``, by score;
            ``true``, full; a number, in eras of so many rows; ``false``.
        weights: Instead of the components' own: a nested blend, ``{web: {weight: 3, blend: {cc: 1,
            wiki: 2}}, code: 1}``; or from the sizes of the sources: ``{temperature: 2}``,
            ``{unimax: 4}`` (mix/blend.py).
        unit: What weights, budgets and sizes count: ``examples`` or ``tokens``, i.e. rows or their
            positions (the same batches, as rows of a step have one length); ``content_tokens`` or
            ``trained_tokens``, i.e. tokens in packed rows, or those trained on. See
            :mod:`headrace.data.row_tokens`.
        stages: Instead of weights: consecutive mixtures, each with ``weights`` and ``step`` or
            ``tokens``. With ``policy: swrr`` they change at an example, as in nmoe.
        amendments: What a resumed run changes from a ``step`` on: ``add``, ``drop``, ``weights``;
            ``caches: {web: 3}``, later snapshots, with documents that were appended or removed;
            ``skip: [[1200, 1400]]``, steps whose batches are left out; ``measured``, the losses by
            which a rule decided.
        num_steps: Steps of the run, after which the loader ends; None: unlimited, or until the
            tokens of the last stage are used up. Not part of the run's fingerprint: a run may be
            extended.
        max_epochs: Most passes over each component that sets no limit of its own.
        stop_strategy: ``restart``, ``first_exhausted`` or ``all_exhausted``.
        last_batch: What becomes of a last batch that the data do not fill: ``pad`` it with empty
            rows, ``drop`` its rows, or ``fill`` it with the first rows again; see
            :mod:`headrace.mix.schedule`.
        policy: ``quota``; ``whole_batches``, each batch from one component; or the sequence of
            another system: ``swrr``, ``greedy``, ``exhaustive``, ``least_consumed``.
        validation: What to hold out of every component that has no setting of its own:
            ``{one_in: 100}``, ``{fraction: 0.01}`` or ``{rows: 1000}``, ``by: blocks`` or
            ``documents``, ``seed``; None: nothing.
        subset: The part of every component to train on, the same in each epoch, as if sources were
            no larger (simulated epoching): ``{fraction: 0.1}`` or ``{rows: 5000}``, ``by: blocks``
            or ``start``, ``seed``; None: all. Taken after the hold-out.
        tokenizer: Tokenizer of the caches, with ``path``, ``bos``, ``eos`` and ``engine``; None:
            the one they were built with. Levanter's caches do not record theirs, so it is trusted
            there as far as ids and ends of documents allow.
        split_documents: Whether attention and labels stay within documents, as the cache stores
            them.
        columns: Per-token values in batches besides the tokens: ``{NAME: LEAF}``, or ``{NAME:
            {leaf: LEAF, default: 0}}`` for components without the leaf; None: nothing. See
            :mod:`headrace.data.columns`.
        row_order: ``locality`` or ``stream``: order of rows within a batch.
        prefetch_bytes: Memory for prefetching, on each host.
        row_exchange: ``auto`` (None), ``on`` or ``off``: whether hosts exchange rows; not in the
            fingerprint.
        max_hosts: The most hosts that the run will have. Strands of components in shuffled stores
            follow from it, so it is part of their order, and not the hosts that run; None: from the
            batch, as those of others. See :mod:`headrace.order.shuffle_config`.
        micro_batches: How batches become micro-batches: ``{max_tokens: 8192}``, with ``balance``
            (``none``, ``tokens`` or ``flops``, which needs a ``model``) and ``rows``; not in the
            fingerprint.
        compat: Another system whose rows and order the run follows: ``nmoe``, or ``{system:
            megatron, split: "969,30,1", extra_token: true}``, which sets ``policy``, ``shuffle``
            and ``row_order``.

    Raises:
        ConfigError: a value is invalid; the error names the field.
    """

    components: dict[str, ComponentConfig] = field(default_factory=dict[str, ComponentConfig])
    seq_len: int | dict[int, int] = 2048
    batch_size: int | dict[int, int] = 32
    seed: int = 0
    shuffle: shuffle_config.ShuffleConfig = field(default_factory=BraidShuffleConfig)
    weights: dict[str, Any] | None = None
    unit: WeightUnit = "examples"
    stages: list[StageConfig] = field(default_factory=list[StageConfig])
    amendments: list[AmendmentConfig] = field(default_factory=list[AmendmentConfig])
    num_steps: int | None = None
    max_epochs: float | None = None
    stop_strategy: StopStrategy = "restart"
    last_batch: LastBatch = "pad"
    policy: str = "quota"
    validation: ValidationConfig | None = None
    subset: SubsetConfig | None = None
    tokenizer: TokenizerConfig | None = None
    split_documents: bool = False
    columns: dict[str, str | ColumnConfig] | None = None
    row_order: RowOrder = "locality"
    prefetch_bytes: int = 1 << 30
    row_exchange: str | bool | None = None
    max_hosts: int | None = MAX_HOSTS
    micro_batches: MicroBatchConfig | None = None
    compat: CompatConfig | None = None
    _settled: ClassVar[Settled | None] = None
    """What its snapshots are, of a config of :meth:`at_snapshots`."""
    _opened: ClassVar[Mapping[str, TokenCache]] = {}
    """Open caches in place of those at their paths, of a config of :meth:`with_caches`."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.compat is not None:
            self.compat.load().apply(self)
        if self.phases[1:] and self.stop_strategy != "restart":
            raise ConfigError(
                _NOT_WITH_PHASES,
                field="stop_strategy",
                value=self.stop_strategy,
                cure="Use restart, with max_epochs or max_tokens.",
            )
        checked_budget(self.prefetch_bytes)
        check_choice("policy", self.policy, policy_names())
        check_choice("row_exchange", self.exchange_setting, get_args(ExchangeSetting))
        if self.max_hosts is not None:
            check_at_least("max_hosts", self.max_hosts)
        BatchSchedule(self.batch_size)
        check_seed(self.seed)
        check_shuffle(self.shuffle, "shuffle")
        packing = {name: component.packing for name, component in self.components.items()}
        check_packing(packing, split_documents=self.split_documents)
        for name in self.columns or {}:
            check_column_name(name)
        row_tokens = 1 if self.counted_tokens else self.phases[0][1]
        for name, component in self.components.items():
            component.check(f"components.{name}", row_tokens)
        if self.micro_batches is not None:
            self.micro_batches.check(max(dict(self.phases).values()))
        for name, component in self.components.items():
            subset = component.subset_in(name, self.subset)
            if subset is not None and self.phases[1:]:
                cure = "Keep one seq_len, or leave the subset out."
                raise ConfigError(_NOT_WITH_PHASES, field=subset[1], cure=cure)
        check_epochs("max_epochs", self.max_epochs)
        expanded = written_out(
            self.components,
            self.weights,
            self.stages,
            self.amendments,
            self.validation,
            self.max_epochs,
        )
        vars(self).update(expanded)  # it is frozen
        check_steps("num_steps", self.num_steps)
        check_plan(self.stages, self.amendments)
        check_unit(self.unit, self.policy, self.counted_tokens, len(self.phases))
        policy_kind(self.policy).check(self._mixture_config())
        _ = self.run_steps

    @property
    def phases(self) -> tuple[tuple[int, int], ...]:
        """First step and row length of each phase; a single one unless ``seq_len`` changes."""
        return phase_lengths(self.seq_len)

    @property
    def counted_tokens(self) -> CountedTokens | None:
        """Which tokens are counted one by one; None: every row counts the same, by the unit or
        because none is packed.
        """
        if self.unit == "trained_tokens":
            return "trained"
        packed = any(component.packing is not None for component in self.components.values())
        return "content" if packed and self.unit == "content_tokens" else None

    @property
    def run_steps(self) -> int | None:
        """Steps of the run, from ``num_steps`` or the last stage's tokens; None: neither, or tokens
        must be counted.
        """
        planned = policy_kind(self.policy).run_steps(self._mixture_config())
        return None if planned is None else self.skips.step_of(planned)

    @property
    def skips(self) -> Skips:
        """The skipped steps of the run."""
        return skips_of(self.amendments)

    def plan(self) -> Plan:
        """The plan of the run: its weights, limits and lengths, as a list of stages. Caches are
        opened only if weights follow from sizes.

        Raises:
            ConfigError: weights given in two places, an unknown source, an amendment out of order.
        """
        moves = any(amendment.caches for amendment in self.amendments)
        config = self.at_snapshots() if moves else self
        components = config.components
        own_limits = {n: c.max_epochs for n, c in components.items() if c.max_epochs is not None}
        epochs = own_limits
        if self.max_epochs is not None:
            epochs = (
                {**dict.fromkeys(components, self.max_epochs), **own_limits}
                if own_limits
                else self.max_epochs
            )
        budgets = {n: c.max_tokens for n, c in components.items() if c.max_tokens is not None}
        max_rows: dict[str, int] = {}
        if self.counted_tokens is None:
            max_rows = {name: tokens // self.phases[0][1] for name, tokens in budgets.items()}
        return replace(
            policy_kind(self.policy).plan(config._mixture_config()),
            max_epochs=epochs or None,
            max_tokens=budgets,
            max_rows=max_rows,
            stop_strategy=self.stop_strategy,
        )

    def _mixture_config(self) -> MixtureConfig:
        weights = {name: component.weight for name, component in self.components.items()}
        amendments = self.amendments
        if self._settled is None:  # as if each amendment brought documents in
            weights |= {name: None for one in amendments for name in one.newcomers.values()}
        else:
            amendments = [one.bringing_in(self.components) for one in amendments]
        return MixtureConfig(
            weights,
            BatchSchedule(self.batch_size, last_batch=self.last_batch),
            self.phases,
            weights=self.weights,
            stages=self.stages,
            amendments=amendments,
            max_share={
                n: c.max_share for n, c in self.components.items() if c.max_share is not None
            },
            num_steps=self.num_steps,
            sizes=cache(self._sizes),
            counted_tokens=self.counted_tokens,
            may_end=self._may_end,
        )

    def _sizes(self) -> dict[str, int]:
        """Tokens in an epoch of each component: positions of its rows, or those counted one by
        one.
        """
        counted = self.counted_tokens
        return {
            name: len(trained) * trained.seq_len
            if counted is None
            else RowTokens(trained, counted, name).total
            for name, trained in self._trained(self._stored()).items()
        }

    @property
    def _may_end(self) -> bool:
        """Whether the run may end at a step that only the data tell."""
        components = self.components.values()
        limited = any(c.max_epochs is not None or c.max_tokens is not None for c in components)
        ends_by_tokens = self.counted_tokens is not None and any(
            stage.tokens for stage in self.stages
        )
        ends = self.stop_strategy != "restart" or self.max_epochs is not None
        return limited or ends_by_tokens or ends or policy_kind(self.policy).ends_with_data

    def build_caches(self, *, progress: bool = True) -> None:
        """Builds missing caches that have a source, and finishes unfinished ones.

        Raises:
            ConfigError: a cache is missing and its component has no source.
            SourceError: files of the sources cannot be built from; names them all, before anything
                is built.
        """
        build_caches(self.components, self.tokenizer, progress=progress)

    def with_caches(self, caches: Mapping[str, TokenCache]) -> LmDataConfig:
        """This config with open caches, by component, in place of those at their paths. A config
        that is made of it with other fields does not have them.

        Raises:
            ConfigError: a name is no component.

        Example:
            >>> import headrace.testing
            >>> config = LmDataConfig({"web": ComponentConfig("caches/web")}, seq_len=8)
            >>> len(config.with_caches({"web": headrace.testing.tiny_cache()}).datasets()["web"])
            331
        """
        if not isinstance(caches, Mapping):
            cure = "Give {NAME: CACHE}."
            raise ConfigError("is not a mapping", field="caches", value=caches, cure=cure)
        newcomers = (name for one in self.amendments for name in one.newcomers.values())
        known = {*self.components, *newcomers}
        for name in caches:
            if name not in known:
                cure = did_you_mean(name, known)
                raise ConfigError("is not a component", field=name, cure=cure)
        config = copy(self)
        vars(config).update(_opened=caches)
        return config

    def open_caches(self) -> dict[str, TokenCache]:
        """Opens the caches of all components.

        Raises:
            CacheError: one is missing, unfinished or unreadable.
            ConfigError: they were built with different tokenizers, or with another than the
                config's.
        """
        config = self.at_snapshots()
        assert config._settled is not None
        snapshots = config._settled.snapshots
        missing = {n: of_each for n, of_each in snapshots.items() if n not in self._opened}
        opened = open_caches(config.components, missing, self.tokenizer)
        caches = {**opened, **self._opened}
        return ByComponent({name: caches[name] for name in config.components})

    def at_snapshots(self) -> LmDataConfig:
        """This config with the snapshot of each cache written out, and with a component for the
        documents that each amendment brings in: ``web@3`` for ``caches: {web: 3}``.

        Reads the lists of snapshots.

        Raises:
            ConfigError: there is no such snapshot, or an amendment cannot be carried out.
            CacheError: a list cannot be read, or is damaged.

        Example:
            >>> import headrace.testing
            >>> config = LmDataConfig({"web": ComponentConfig(headrace.testing.tiny_cache().path)})
            >>> config.at_snapshots().components["web"].snapshot
            [1]
        """
        if self._settled is not None:
            return self
        check_any(self.components)
        settled = settle(
            self.components,
            self.amendments,
            self._opened,
            weights=self.weights,
            shuffle=self.shuffle,
            validation=self.validation,
        )
        # Its fields were checked when it was made; what snapshots add follows from them.
        config = copy(self)
        vars(config).update(components=settled.components, _settled=settled)
        return config

    @property
    def vocab_size(self) -> int:
        """The largest vocabulary size of the caches' tokenizers. Raises what :meth:`open_caches`
        does.
        """
        return max(cache.vocab_size for cache in self.open_caches().values())

    def datasets(self) -> dict[str, StoredDataset]:
        """The components in stored order, without removed documents, in rows of the first phase;
        before they are split, shuffled and mixed.
        """
        config = self.at_snapshots()
        return config._without_removed(config._stored())

    def _without_removed(self, datasets: Mapping[str, StoredDataset]) -> dict[str, StoredDataset]:
        """Datasets without the documents that are removed at the last of the config's snapshots."""
        assert self._settled is not None
        erased: dict[str, StoredDataset] = ByComponent()
        for name, dataset in datasets.items():
            moves = self._settled.moves[name]
            removed = dataset.cache.removed(moves[-1].snapshots if moves else None)
            erased[name] = dataset.erasing(removed)
        return erased

    def _stored(self) -> dict[str, StoredDataset]:
        """:meth:`datasets` with the documents that are removed from their caches: which of them a
        run erases, and from which step on, is said of the mixture.
        """
        config = self.at_snapshots()
        caches = config.open_caches()
        components = config.components
        if self.compat:
            of_system = self.compat.load().datasets(config, caches, "train")
            return _with_removed(of_system)
        own_columns = {name: one.columns or {} for name, one in components.items()}
        numbers = {
            name: one.document_numbers(name, caches[name])
            for name, one in components.items()
            if self.columns or one.columns or one.attributes or one.where or one.buckets
        }
        columns = columns_by_component(numbers, self.columns or {}, own_columns) if numbers else {}
        removed = left_out(components, caches, numbers)
        stored: dict[str, StoredDataset] = {}
        for name, one in components.items():
            one.check_buckets(name, caches[name])
            stored[name] = stored_rows(
                caches[name],
                self.phases[0][1],
                name=name,
                split_documents=self.split_documents,
                packing=one.packing,
                removed=removed[name],
                loss_mask=one.loss_mask,
                columns=columns.get(name),
                pairs=one.pairs,
            )
        return _with_removed(stored)

    def train_datasets(self) -> dict[str, PlannedDataset]:
        """The training part of :meth:`datasets`: what is not held out, or a subset of it."""
        config = self.at_snapshots()
        return config._trained(config.datasets())

    def _trained(self, datasets: Mapping[str, StoredDataset]) -> dict[str, PlannedDataset]:
        """The training part of the components."""
        config = self.at_snapshots()
        trained: dict[str, PlannedDataset] = ByComponent()
        for name, dataset in datasets.items():
            train, _ = config._sides(name, dataset, None)
            trained[name] = config._subset(name, train)
        return trained

    def accounts(self) -> dict[str, Account]:
        """Where the tokens of each component go."""
        config = self.at_snapshots()
        datasets = config._stored()
        sides = {name: config._sides(name, dataset, None) for name, dataset in datasets.items()}
        held_out = config.held_out
        return {
            n: account(
                datasets[n], train, validation if n in held_out else None, config._subset(n, train)
            )
            for n, (train, validation) in sides.items()
        }

    def validation_datasets(self, *, seq_len: int | None = None) -> dict[str, PlannedDataset]:
        """The held-out part of :meth:`datasets`, in stored order; the same tokens whatever the
        shuffle, without those of removed documents. Components of which nothing is held out are
        left out.

        Args:
            seq_len: Tokens in a row, at most those of a block; None: as in the first phase.

        Raises:
            ConfigError: the config has no hold-out, or rows are longer than a block.
        """
        config = self.at_snapshots()
        if self.compat:
            caches = config.open_caches()
            of_system = self.compat.load().datasets(config, caches, "validation")
            return ByComponent(config._without_removed(of_system))
        held_out = config.held_out
        if not held_out:
            raise ConfigError(
                "is not set", field="validation", cure="Write validation: {one_in: 100}."
            )
        datasets = {n: ds for n, ds in config.datasets().items() if n in held_out}
        return ByComponent({n: config._sides(n, ds, seq_len)[1] for n, ds in datasets.items()})

    @property
    def held_out(self) -> dict[str, tuple[ValidationConfig, str]]:
        """The split of each component of which something is held out, and the path of the field
        that says so.
        """
        return {
            name: split
            for name, component in self.components.items()
            if (split := component.validation_in(name, self.validation)) is not None
        }

    def _sides(
        self, name: str, dataset: StoredDataset, seq_len: int | None
    ) -> tuple[PlannedDataset, PlannedDataset]:
        """Training and validation side of a component."""
        block = None
        packed = dataset.pack_plan is not None  # whose documents are held out
        split, path = self.components[name].validation_in(name, self.validation) or (None, "")
        if split is not None and len(self.phases) > 1 and not packed:
            lengths = [length for _, length in self.phases]
            block = phase_block(
                dataset.cache.layout.chunk_elements, lengths, self.shuffle_for(name).io_block_size
            )
        return component_sides(name, dataset, split, path=path, block_tokens=block, seq_len=seq_len)

    def _subset(self, name: str, train: PlannedDataset) -> PlannedDataset:
        return subset_side(
            name, train, *(self.components[name].subset_in(name, self.subset) or (None, ""))
        )

    def shuffle_for(self, name: str) -> Shuffle:
        """How a component is shuffled: its own setting, or the config's."""
        return self.components[name].shuffle_or(self.shuffle)

    def _scores(self, caches: Mapping[str, TokenCache]) -> dict[str, RowScores]:
        """What computes the scores of rows, of each component that is shuffled by a number."""
        scores: dict[str, RowScores] = {}
        for name, component in self.components.items():
            by = self.shuffle_for(name).scored_by
            if by is None:
                continue
            of_component = component.shuffle is not None
            field = f"components.{name}.shuffle.by" if of_component else "shuffle.by"
            if len(self.phases) > 1:
                raise ConfigError(
                    _NOT_WITH_PHASES, field=field, value=by, cure="Write one seq_len."
                )
            numbers = component.document_numbers(name, caches[name])
            scores[name] = partial(row_scores, numbers=numbers, name=by, field=field)
        return scores

    def dataset(self) -> RunDataset:
        """All components, shuffled and mixed."""
        config = self.at_snapshots()
        opened = config.open_caches()
        config = config.with_caches(opened)
        components = config.components
        plan = config.plan()
        orders = Orders(
            self.seed,
            {name: config.shuffle_for(name) for name in components},
            own_shuffles={name for name, c in components.items() if c.shuffle is not None},
            validation=config.held_out,
            max_hosts=self.max_hosts,
            scores=config._scores(opened),
        )
        stored = config._stored()
        if len(self.phases) == 1:
            trained = config._trained(stored)
            if plan.counted_tokens is not None:
                plan = counted_plan(plan, trained)
            dataset = MixtureDataset.of(shuffle_components(trained, plan, orders), plan)
        else:  # what is held out depends on all lengths
            dataset = phased_dataset(stored, plan, orders)
        if plan.num_steps is not None and self.stop_strategy == "restart":
            limited = {name for name, c in components.items() if c.max_epochs is not None}
            require_steps(dataset, plan.num_steps, plan, limited)
        weighed = {
            name: c.loss_weight for name, c in components.items() if c.loss_weight is not None
        }
        phases = [
            (step, cast(MixtureDataset, phase).with_loss_weights(weighed).skipping(self.skips))
            for step, phase in dataset.phases
        ]
        assert config._settled is not None
        erasures = find_erasures(config._settled, opened)
        run: RunDataset = phases[0][1]
        if len(self.phases) > 1 or erasures:
            drawn_from = config._settled.drawn_from
            run = PhasedDataset(
                phases, plan.batch, dataset.changes, erasures, drawn_from, self.skips
            )
        run.config = self
        return run

    def loader(
        self,
        mesh: Mesh | None = None,
        *,
        batch_axis: str | Sequence[str] | None = None,
        sharding: NamedSharding | None = None,
        fn: Callable[[PackedBatch], Any] | None = None,
        **options: Unpack[LoaderOptions],
    ) -> DataLoader:
        """A :class:`~headrace.feed.loader.DataLoader` for :meth:`dataset`, with the config's
        settings.

        ``fn`` is applied to batches on the host; see
        :meth:`~headrace.data.async_dataset.AsyncDataset.map`. ``options`` are
        :class:`~headrace.feed.loader.LoaderOptions`, such as ``host_barrier``.
        """
        dataset = self.dataset()
        return self.loader_of(
            dataset if fn is None else dataset.map(fn),
            mesh,
            batch_axis=batch_axis,
            sharding=sharding,
            **options,
        )

    def loader_of(
        self,
        dataset: AsyncDataset[Any],
        mesh: Mesh | None = None,
        *,
        batch_axis: str | Sequence[str] | None = None,
        sharding: NamedSharding | None = None,
        **options: Unpack[LoaderOptions],
    ) -> DataLoader:
        """A loader for what :meth:`dataset` returned, with or without functions, with the config's
        settings; see :meth:`loader`.
        """
        from headrace.feed.loader import DataLoader

        fields, packed = self.counts_of_padding()
        if fields:
            _LOG.warning(
                "%s: counts padding of packed rows (%s); unit: content_tokens does not",
                fields[0],
                packed[0],
            )
        loader = DataLoader(
            dataset,
            mesh=mesh,
            batch_axis=batch_axis,
            sharding=sharding,
            prefetch_bytes=self.prefetch_bytes,
            row_order=self.row_order,
            **{
                "row_exchange": self.exchange_setting,
                "micro_batches": self.micro_batches,
                **options,
            },
        )
        planned = cast("PlannedDataset", dataset.planned)
        open_bytes = OpenBytes.of(planned, self.exchange_setting)
        open_bytes.check(self.prefetch_bytes, loader.local_share)
        self._log_more_hosts(planned, loader.local_share)
        return loader

    def _log_more_hosts(self, dataset: PlannedDataset, share: float) -> None:
        """Warns if hosts that each hold this share of a batch are more than their strands are
        for.
        """
        mixture = mixture_of(dataset.phases[0][1])
        if mixture is None or not share:
            return
        components = dict(zip(mixture.names, mixture.components, strict=True))
        if problem := too_many_hosts(components, self.max_hosts, round(1 / share)):
            _LOG.warning("max_hosts: %s", problem)

    def counts_of_padding(self) -> tuple[list[str], list[str]]:
        """Fields whose token counts include padding, and the packed components whose padding they
        include.
        """
        components = self.components
        packed = [name for name, component in components.items() if component.packing is not None]
        counts_tokens = {
            "unit": self.unit == "tokens",
            "policy": self.policy == "least_consumed",
            "weights": self.weights is not None and is_size_rule(self.weights, components),
            "stages": any(stage.tokens is not None for stage in self.stages),
            **{
                f"components.{name}.max_tokens": components[name].max_tokens is not None
                for name in packed
            },
        }
        fields = [field for field, counts in counts_tokens.items() if counts]
        return (fields, packed) if packed and self.unit in ("examples", "tokens") else ([], [])

    @property
    def exchange_setting(self) -> ExchangeSetting:
        """``row_exchange``, however it is written."""
        ways: dict[Any, Any] = {None: "auto", True: "on", False: "off"}
        return ways.get(self.row_exchange, self.row_exchange)

    def binding_fields(self) -> dict[str, Any]:
        """The fields on which batches depend, as the values of :meth:`to_yaml`."""
        import yaml

        fields: dict[str, Any] = yaml.safe_load(self.to_yaml())
        return {name: fields[name] for name in fields if name not in FREE_FIELDS}

    def to_yaml(self) -> str:
        """The config as YAML that ``load_config`` reads back to an equal one."""
        return dump(self)


def _with_removed(datasets: Mapping[str, StoredDataset]) -> dict[str, StoredDataset]:
    """Datasets with the documents that are removed from their caches, too."""
    return ByComponent({name: one.erasing(Intervals.empty()) for name, one in datasets.items()})


def load_config(
    path: str | PathLike[str] | None = None, overrides: Sequence[str] = ()
) -> LmDataConfig:
    """Reads a config from YAML, with values set over it.

    Args:
        path: YAML file; None: defaults only.
        overrides: ``dotted.name=value`` settings, or ``--dotted.name value`` pairs of a command
            line; values are YAML.

    Raises:
        ConfigError: the file is missing or not YAML; an unknown key or a wrong value (the error has
            its dotted path).

    Example:
        >>> load_config(overrides=["seq_len=128", "components.a.cache=caches/a"]).components[
        ...     "a"
        ... ].cache
        'caches/a'
    """
    raw = read_mapping(path) if path else {}
    if "data" in raw and {"model", "trainer"} & raw.keys():
        cure = f"Translate it: {command_line('config from-levanter', path)} > data.yaml"
        raise ConfigError("is a config of Levanter's", field="config", value=path, cure=cure)
    return decode(LmDataConfig, with_overrides(raw, overrides, LmDataConfig))
