"""``ComponentConfig``: one source of a mixture in a config."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypeVar

import numpy as np

from headrace.data.buckets import BucketsConfig, without_others
from headrace.data.documents import DocumentFilter
from headrace.data.pairs import is_of_pairs
from headrace.data.saved_filters import RemovedDocuments
from headrace.errors import ConfigError, did_you_mean, format_count
from headrace.feed.host_ledgers import filter_reader, generation_reader, ledger_reader
from headrace.ingest.base_tokenizer import check_one_tokenizer, name_tokenizer
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import load_tokenizer
from headrace.mix.amendments import number_of_each
from headrace.mix.blend import is_size_rule
from headrace.mix.limits import check_component_budgets
from headrace.mix.repeats import check_weight
from headrace.mix.schedule import CountedTokens, weight_from_config
from headrace.mix.stage_config import AmendmentConfig
from headrace.order import shuffle_config
from headrace.order.holdout import ValidationConfig
from headrace.order.subset import SubsetConfig
from headrace.pack.spec import PackingConfig
from headrace.store.cache import TokenCache
from headrace.store.generations import cache_of_generation, check_generation, generations_of
from headrace.store.joined import open_components
from headrace.store.location import Location

if TYPE_CHECKING:  # imports jax
    from headrace.config.lm_data import LmDataConfig
    from headrace.data.dataset import PlannedDataset

_LOG = logging.getLogger(__name__)
_Value = TypeVar("_Value")


class ByComponent(dict[str, _Value]):
    """Values by component; looking up a name that is no component raises ConfigError with those
    that are.

    Example:
        >>> ByComponent({"code": 1, "docs": 2})["doc"]
        Traceback (most recent call last):
        headrace.errors.ConfigError: component = 'doc': is not a component. Did you mean 'docs'?
    """

    def __missing__(self, name: object) -> NoReturn:
        cure = did_you_mean(str(name), self)
        raise ConfigError("is not a component", field="component", value=name, cure=cure)


@dataclass(frozen=True)
class ComponentConfig:
    """One source of a mixture. In a config, the path of its cache is enough: ``{web: caches/web}``.

    Attributes:
        cache: Path or URL of its token cache, or a list of several that form one source, one after
            the other.
        weight: A number, ``{step: {step: w}}``, ``{linear: {step: w}}`` or ``{cosine: {step: w}}``:
            a function of the global step. None: 1, or as set by ``weights``, ``stages`` or an
            amendment.
        source: Text to build the cache from, if it does not exist (``LmDataConfig.build_caches``).
        shuffle: How this component is shuffled; None: the config's setting.
        packing: How its documents are packed into rows, ``{}`` for the defaults; None: rows are cut
            from the stream of its tokens, regardless of documents.
        validation: What to hold out of it: ``none``; a fraction up to 0.5; a number of rows from 2
            on; or all settings of a split. A number takes the seed from the config's setting, and a
            fraction its ``by``. None: the config's setting.
        subset: The part of its rows to train on, the same in every epoch; None: the config's
            setting.
        max_epochs: Most passes over it, possibly a fraction; None: the config's setting.
        max_tokens: Most tokens of it in the whole run; those of packed rows include padding, unless
            the config's ``unit`` counts otherwise.
        max_share: Its largest share of a batch at any step: of rows, or of what ``unit`` counts;
            rounded up to a row.
        expected_tokens: Tokens that its cache will hold, used for planning while there is no cache.
            Training ignores it.
        remove: File of documents to leave out; see
            :class:`~headrace.data.documents.DocumentFilter`.
        tombstones: Generation of its cache's tombstones (``headrace cache remove``) that a run
            starts with, 0 for none; a list for several caches, one number each. None: the newest at
            the start of the run, as recorded in its manifest. Later removals reach a running run by
            an amendment.
        generations: How many generations of its cache (``headrace build --append``) a run starts
            with; a list for several caches, one number each. None: all that exist at the start of
            the run, as recorded in its manifest; if an amendment extends it, all before those that
            the first one adds.
        remove_not_found: What to do with numbers in that file that match no document: ``refuse``
            them, or ``count`` them and continue.
        loss_mask: Leaf of the cache that marks the tokens to train on; ``auto``: the one of chats,
            if there is one; ``none``: train on all tokens.
        replicas: Other locations of the same cache, tried in turn if the first fails. Not part of
            the run's fingerprint: batches do not depend on it; see :mod:`headrace.store.replicas`.
        loss_weight: Loss weight of its tokens, written like ``weight``: a number, or a function of
            the step. None: 1.
        columns: Leaves of its cache with other names than in the config's ``columns``; ``none``: it
            lacks the column, and its tokens get the column's default.
        buckets: Splits its documents by a score, by length or by how often each is to be seen. The
            component then becomes a group of components over one cache, to which the config's
            ``components`` and ``weights`` are expanded; see :mod:`headrace.data.buckets`.
        pairs: Whether its documents are preference pairs. None: as the cache says; pairs must be
            packed, and are packed in units of two. ``false`` trains on both answers as on text.

    Example:
        >>> from headrace import LmDataConfig
        >>> web = ComponentConfig("caches/web", weight=3)
        >>> wiki = ComponentConfig("caches/wiki", weight={"linear": {0: 0, 1000: 1}}, max_epochs=4)
        >>> [*LmDataConfig({"web": web, "wiki": wiki}).components]
        ['web', 'wiki']
    """

    SHORTHAND: ClassVar[str] = "cache"

    cache: str | list[str]
    weight: float | dict[str, Any] | None = None
    source: SourceConfig | None = None
    shuffle: shuffle_config.ShuffleConfig | None = None
    packing: PackingConfig | None = None
    validation: Literal["none"] | float | ValidationConfig | None = None
    subset: SubsetConfig | None = None
    max_epochs: float | None = None
    max_tokens: int | None = None
    max_share: float | None = None
    expected_tokens: float | None = None
    remove: str | None = None
    remove_not_found: Literal["refuse", "count"] = "refuse"
    tombstones: int | list[int] | None = None
    generations: int | list[int] | None = None
    loss_mask: str = "auto"
    replicas: list[str] | None = None
    loss_weight: float | dict[str, Any] | None = None
    columns: dict[str, str] | None = None
    buckets: BucketsConfig | None = None
    pairs: bool | None = None

    @property
    def caches(self) -> list[str]:
        """The paths of its caches."""
        return [self.cache] if isinstance(self.cache, str) else self.cache

    def generation_counts(self, path: str) -> list[int | None]:
        """How many generations of each of its caches a run starts with, None for all; ConfigError
        if the list has the wrong length. ``path`` is the component's, for the error.
        """
        if self.generations is None:
            return [None for _ in self.caches]
        counts = number_of_each(self.generations)
        if len(counts) != len(self.caches) or min(counts, default=0) < 1:
            cure = f"Give one number, from 1, for each: {[1] * len(self.caches)}, or leave it out."
            problem = (
                f"is not how many generations its {format_count(len(self.caches), 'cache')} can"
                " have"
            )
            raise ConfigError(
                problem, field=f"{path}.generations", value=self.generations, cure=cure
            )
        return [*counts]

    def begins_with(self, name: str, amendments: Sequence[AmendmentConfig]) -> list[int] | None:
        """How many generations of each of its caches a run starts with, as far as the config tells:
        if it is extended, all before those that the first amendment adds; None: all that exist.
        """
        if self.generations is not None:
            return number_of_each(self.generations)
        extension = next(
            (amendment.extend[name] for amendment in amendments if name in amendment.extend), None
        )
        return (
            None
            if extension is None
            else [max(number - 1, 1) for number in number_of_each(extension)]
        )

    @property
    def shown_cache(self) -> str:
        """The name of its cache in tables."""
        return self.caches[0] + (f" and {len(self.caches) - 1} more" if self.caches[1:] else "")

    def document_filter(self, name: str) -> DocumentFilter | None:
        """The filter of documents to leave out; ConfigError if its file lists none."""
        if self.remove is None:
            return None
        count = self.remove_not_found == "count"
        return DocumentFilter.load(
            self.remove, name=f"components.{name}.remove", count_not_found=count
        )

    def subset_in(self, name: str, default: SubsetConfig | None) -> tuple[SubsetConfig, str] | None:
        """Its subset, its own or the config's, and the path of that field; None if all is trained
        on.
        """
        if self.subset is not None:
            return self.subset, f"components.{name}.subset"
        return None if default is None else (default, "subset")

    def validation_in(
        self, name: str, default: ValidationConfig | None
    ) -> tuple[ValidationConfig, str] | None:
        """What is held out of it, by its own setting or the config's, and the path of that field;
        None if nothing is.

        Raises:
            ConfigError: a number that is neither a fraction nor a number of rows.
        """
        path = f"components.{name}.validation"
        if self.validation is None:
            return None if default is None else (default, "validation")
        if self.validation == "none":
            return None
        if isinstance(self.validation, ValidationConfig):
            return self.validation, path
        number = self.validation
        seed = default.seed if default is not None else 0
        by = default.by if default is not None else "blocks"
        if number == 1:
            raise ConfigError(
                "may mean all rows, of which none would be left to train on, or a single row",
                field=path,
                value=number,
                cure="Write a fraction up to 0.5, or {rows: 1}.",
            )
        if 0 < number <= 0.5:
            return ValidationConfig(fraction=number, by=by, seed=seed), path
        if number >= 1 and number == int(number):
            return ValidationConfig(rows=int(number), seed=seed), path
        cure = "Write none, a fraction up to 0.5, or a number of rows, e.g. 1000."
        raise ConfigError(
            "is neither a fraction nor a number of rows", field=path, value=number, cure=cure
        )

    def check(self, path: str, row_tokens: int) -> None:
        """Raises ConfigError for a value that can never be met; ``path`` is the component's, for
        the error.
        """
        if not self.caches:
            raise ConfigError(
                "is empty", field=f"{path}.cache", cure="Name a cache, or a list of caches."
            )
        for field, folders in (("cache", self.caches), ("replicas", self.replicas or ())):
            for folder in folders:
                Location.parse(folder).check_folder(f"{path}.{field}")
        if self.replicas and self.caches[1:]:
            cure = "Make each cache a component of its own, with its replicas."
            raise ConfigError(
                "go with one cache, and there are several", field=f"{path}.replicas", cure=cure
            )
        self.validation_in(path.removeprefix("components."), None)
        self.generation_counts(path)
        paths = [self.caches[0], *(self.replicas or [])]
        if twice := [one for n, one in enumerate(paths) if one in paths[:n]]:
            cure = "Name each place once."
            raise ConfigError("is named twice", field=f"{path}.replicas", value=twice[0], cure=cure)
        if self.source is not None and self.caches[1:]:
            cure = (
                "Name one cache to build, or build each by itself: headrace build SOURCE -o CACHE."
            )
            raise ConfigError(
                "cannot be built into several caches", field=f"{path}.source", cure=cure
            )
        if self.weight is not None:
            check_weight(self.weight, f"{path}.weight")
        for number, weight in enumerate((self.buckets and self.buckets.weights) or ()):
            check_weight(weight, f"{path}.buckets.weights[{number}]")
        if self.loss_weight is not None:
            weight_from_config(self.loss_weight, f"{path}.loss_weight")
        if self.shuffle is not None:
            shuffle_config.check_shuffle(self.shuffle, f"{path}.shuffle")
        check_component_budgets(path, self.max_epochs, self.max_tokens, self.max_share, row_tokens)


def counted_tokens(unit: str, components: Mapping[str, ComponentConfig]) -> CountedTokens | None:
    """Which tokens a run counts one by one; None: all rows count alike, by the unit or because none
    is packed.
    """
    if unit == "trained_tokens":
        return "trained"
    packed = any(component.packing is not None for component in components.values())
    return "content" if packed and unit == "content_tokens" else None


def counts_of_padding(config: LmDataConfig) -> tuple[list[str], list[str]]:
    """Fields whose token counts include padding, and the packed components whose padding they
    include.
    """
    components = config.components
    packed = [name for name, component in components.items() if component.packing is not None]
    counts_tokens = {
        "unit": config.unit == "tokens",
        "policy": config.policy == "least_consumed",
        "weights": config.weights is not None and is_size_rule(config.weights, components),
        "stages": any(stage.tokens is not None for stage in config.stages),
        **{
            f"components.{name}.max_tokens": components[name].max_tokens is not None
            for name in packed
        },
    }
    fields = [field for field, counts in counts_tokens.items() if counts]
    return (fields, packed) if packed and config.unit in ("examples", "tokens") else ([], [])


def log_counts_of_padding(config: LmDataConfig) -> None:
    """Warns of fields that count padding, which ``config check`` finds too."""
    fields, packed = counts_of_padding(config)
    if fields:
        _LOG.warning(
            "%s: counts padding of packed rows (%s); unit: content_tokens does not",
            fields[0],
            packed[0],
        )


def sizes_of(
    trained: Mapping[str, PlannedDataset], counted: CountedTokens | None
) -> dict[str, int]:
    """Tokens in an epoch of each component: positions of its rows, or those counted one by one."""
    from headrace.data.row_tokens import RowTokens

    if counted is None:
        return {name: len(dataset) * dataset.seq_len for name, dataset in trained.items()}
    return {name: RowTokens(dataset, counted, name).total for name, dataset in trained.items()}


NOT_WITH_PHASES = "does not go with a seq_len that changes"


def check_strategy(phases: Sequence[tuple[int, int]], strategy: str) -> None:
    """Raises ConfigError if sources can end a run whose row length changes."""
    if phases[1:] and strategy != "restart":
        cure = "Use restart, with max_epochs or max_tokens."
        raise ConfigError(NOT_WITH_PHASES, field="stop_strategy", value=strategy, cure=cure)


def subsets_of(
    components: Mapping[str, ComponentConfig], default: SubsetConfig | None
) -> dict[str, tuple[SubsetConfig, str]]:
    """The subset of each component that has one; see :meth:`ComponentConfig.subset_in`."""
    return {
        n: subset
        for n, component in components.items()
        if (subset := component.subset_in(n, default)) is not None
    }


def held_out_of(
    components: Mapping[str, ComponentConfig], default: ValidationConfig | None
) -> dict[str, tuple[ValidationConfig, str]]:
    """The hold-out of each component that has one; see :meth:`ComponentConfig.validation_in`."""
    return {
        n: split
        for n, component in components.items()
        if (split := component.validation_in(n, default)) is not None
    }


def left_out(
    components: Mapping[str, ComponentConfig], caches: Mapping[str, TokenCache]
) -> dict[str, RemovedDocuments | None]:
    """The documents of its cache that each component leaves out; see
    :func:`~headrace.data.buckets.without_others`.
    """
    removed: dict[str, RemovedDocuments | None] = {}
    for name, component in components.items():
        listed = component.document_filter(name)
        removed[name] = (
            None
            if listed is None
            else listed.of(caches[name], filter_reader(component.remove or ""))
        )
    buckets = {n: c.buckets for n, c in components.items() if c.buckets is not None}
    if not buckets:
        return removed
    of_pairs = [name for name in buckets if is_of_pairs(caches[name], components[name].pairs)]
    return without_others(caches, buckets, removed, of_pairs)


def check_any(components: Mapping[str, ComponentConfig]) -> None:
    """Raises ConfigError if there are no components, or one without a name."""
    if "" in components:
        raise ConfigError(
            "has no name", field="components", value="", cure="Write NAME: {cache: PATH}."
        )
    if not components:
        raise ConfigError(
            "is missing or empty",
            field="components",
            cure="Name at least one: {code: {cache: PATH}}.",
        )


def open_caches(config: LmDataConfig, instead: Mapping[str, TokenCache]) -> dict[str, TokenCache]:
    """Opens the caches of a config's components, by name; one tokenizer must have made all of them.
    Extended components are opened as they start. ``instead`` has open caches, by name, to use in
    place of those at the components' paths.

    Raises what ``LmDataConfig.open_caches`` does.
    """
    components = config.components
    check_any(components)
    if not isinstance(instead, Mapping):
        raise ConfigError(
            "is not a mapping", field="instead", value=instead, cure="Give {NAME: CACHE}."
        )
    for name in instead:
        if name not in components:
            raise ConfigError("is not a component", field=name, cure=did_you_mean(name, components))
    as_begun = {
        n: replace(c, generations=c.begins_with(n, config.amendments))
        for n, c in components.items()
    }
    newcomers = {name for amendment in config.amendments for name in amendment.newcomers.values()}
    try:
        caches = _opened(
            {n: c for n, c in as_begun.items() if n not in instead and n not in newcomers}, config
        )
    except ConfigError as error:
        raise _of_amendment(error, config) from error
    if newcomers:
        lists = _generations(caches)
        _check_known(config, lists)
        caches |= _opened(
            {n: c for n, c in as_begun.items() if n in newcomers and n not in instead}, config
        )
        for member in (one for name in newcomers if name in caches for one in caches[name].members):
            if contents := lists.get(cache_of_generation(member.path)):
                check_generation(member, contents[int(member.path.rpartition("/")[2]) - 1])
    return ByComponent({name: instead.get(name) or caches[name] for name in components})


def _of_amendment(error: ConfigError, config: LmDataConfig) -> ConfigError:
    """An error about generations that only an amendment names, in its words; any other as it is."""
    for at, amendment in enumerate(config.amendments):
        for name, generations in amendment.extend.items():
            if (
                error.field == f"components.{name}.generations"
                and config.components[name].generations is None
            ):
                field = f"amendments[{at}].extend.{name}"
                cure = (error.cure or "").partition("; ")[2]
                cure = f"To make another: {cure.removesuffix(' makes another.')}"
                return ConfigError(error.problem, field=field, value=generations, cure=cure)
    return error


@contextmanager
def named_in_config() -> Iterator[None]:
    """Errors about ``bos`` and ``eos`` name their place in a config."""
    try:
        yield
    except ConfigError as error:
        if error.field not in ("bos", "eos"):
            raise
        field = f"tokenizer.{error.field}"
        cure = (error.cure or "").replace(f"--{error.field} ", f"{field}: ")
        raise ConfigError(error.problem, field=field, value=error.value, cure=cure) from error


def _opened(
    components: Mapping[str, ComponentConfig], config: LmDataConfig
) -> dict[str, TokenCache]:
    replicas = {c.caches[0]: c.replicas for c in components.values() if c.replicas}
    counts = {n: c.generation_counts(f"components.{n}") for n, c in components.items()}
    copies = {n: (*c.caches, *(c.replicas or ()), *counts[n]) for n, c in components.items()}
    first = {paths: n for n, paths in reversed(copies.items())}  # components may share a cache
    paths = {n: components[n].caches for n in components if n in first.values()}
    shared = open_components(
        paths, config.cache_catalog, replicas, ledger_reader(), counts, generation_reader()
    )
    caches = {n: shared[first[copies[n]]] for n in components}
    opened = [(name, cache) for name, joined in caches.items() for cache in joined.members]
    if opened and config.tokenizer is None:
        check_one_tokenizer([(name, c.path, c.ledger.tokenizer) for name, c in opened])
    elif opened and config.tokenizer is not None:
        with named_in_config():
            loaded = load_tokenizer(config.tokenizer)
        for _, cache in opened:
            loaded.check_same(cache.ledger.tokenizer, cache.path)
            name_tokenizer(cache, loaded)
    return caches


def _generations(caches: Mapping[str, TokenCache]) -> dict[str, Sequence[str]]:
    """The content of all existing generations of each cache that components name, by path."""
    lists = dict[str, Sequence[str]]()
    read = generation_reader()
    for cache in caches.values():
        firsts = np.cumsum([0, *cache.generations[:-1]]).tolist()
        lists |= {cache.members[at].path: generations_of(cache.members[at], read) for at in firsts}
    return lists


def _check_known(config: LmDataConfig, known: Mapping[str, Sequence[str]]) -> None:
    """Raises ConfigError for a generation that does not exist."""
    for at, amendment in enumerate(config.amendments):
        for name, generations in amendment.extend.items():
            for number, path in zip(
                number_of_each(generations), config.components[name].caches, strict=True
            ):
                if path in known and number > len(known[path]):
                    cure = f"To make another: headrace build SOURCE --output {path} --append"
                    problem = f"is not a generation of {path}, which has {len(known[path])}"
                    raise ConfigError(
                        problem,
                        field=f"amendments[{at}].extend.{name}",
                        value=generations,
                        cure=cure,
                    )
