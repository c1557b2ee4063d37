"""``ComponentConfig``: one source of a mixture in a config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn, TypeVar

from headrace.data.attributes import AttributeConfig
from headrace.data.buckets import BucketsConfig, without_others
from headrace.data.columns import ColumnConfig, leaves_of
from headrace.data.document_numbers import DocumentNumbers, Where, without_failing
from headrace.data.documents import DocumentFilter
from headrace.data.saved_filters import RemovedDocuments
from headrace.data.token_seq import is_of_pairs
from headrace.errors import ConfigError, did_you_mean, format_count
from headrace.feed.host_ledgers import filter_reader, job_reader
from headrace.ingest.source import SourceConfig
from headrace.ingest.tokenize import (
    TokenizerConfig,
    check_one_tokenizer,
    load_tokenizer,
    name_tokenizer,
)
from headrace.mix.amendments import number_of_each
from headrace.mix.blend import check_weight
from headrace.mix.schedule import weight_from_config
from headrace.mix.stage_config import check_component_budgets
from headrace.order import shuffle_config
from headrace.order.holdout import ValidationConfig
from headrace.order.subset import SubsetConfig
from headrace.pack.spec import PackingConfig
from headrace.store.cache import TokenCache
from headrace.store.joined import open_components
from headrace.store.layouts import FormatConfig
from headrace.store.location import Location
from headrace.store.snapshots import Snapshot

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
            a function of the global step, each with ``scale``; or ``{repeat: 2}``, the number of
            passes in the time of one of ``{repeat: 1}``. None: 1, or as set by ``weights``,
            ``stages`` or an amendment.
        source: Text to build the cache from, if it does not exist (``LmDataConfig.build_caches``):
            ``paths``, ``format``, ``kind``, ``text_field``, ``fields``, ``leaves``, ``chat``, ...
        shuffle: How this component is shuffled; None: the config's setting.
        packing: How its documents are packed into rows, ``{}`` for the defaults, or ``algorithm``,
            ``long``, ``min_fill``, ``plans``; None: rows are cut from the stream of its tokens,
            regardless of documents.
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
        snapshot: The snapshot of its cache (:mod:`headrace.store.snapshots`) that a run starts
            with; a list for several caches, one number each. None: the newest at the start of the
            run, as recorded in its lock; if an amendment moves it to a later one, the one
            before that.
        after: Use only what was appended to its cache after this snapshot; a list for several
            caches. None: all.
        remove_not_found: What to do with numbers in that file that match no document: ``refuse``
            them, or ``count`` them and continue.
        loss_mask: Leaf of the cache that marks the tokens to train on; ``auto``: the one of chats,
            if there is one; ``none``: train on all tokens.
        replicas: Other locations of the same cache, tried in turn if the first fails. Not part of
            the run's fingerprint: batches do not depend on it; see :mod:`headrace.store.replicas`.
        loss_weight: Loss weight of its tokens, written like ``weight``: a number, or a function of
            the step. None: 1.
        columns: Leaves or attributes of its cache with other names than in the config's
            ``columns``; ``none``: it lacks the column, and its tokens get the column's default.
        buckets: Splits its documents by a score, by length or by how often each is to be seen. The
            component then becomes a group of components over one cache, to which the config's
            ``components`` and ``weights`` are expanded; see :mod:`headrace.data.buckets`.
        format: How the files of another system are read in place, such as ``megatron``, or ``{name,
            dtype, eos_id, vocab_size, index}``. None: found out.
        attributes: Numbers of its documents from tables of other programs, by name: files, or a
            mapping; see :class:`~headrace.data.attributes.AttributeConfig`.
        where: A condition on documents; the others are left out: ``quality >= 3 and not dup``. It
            may ask for attributes, leaves with one value per document, and ``length``.
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
    snapshot: int | list[int] | None = None
    after: int | list[int] | None = None
    loss_mask: str = "auto"
    replicas: list[str] | None = None
    loss_weight: float | dict[str, Any] | None = None
    columns: dict[str, str] | None = None
    buckets: BucketsConfig | None = None
    pairs: bool | None = None
    format: FormatConfig | None = None
    attributes: dict[str, AttributeConfig] | None = None
    where: str | None = None

    @property
    def caches(self) -> list[str]:
        """The paths of its caches."""
        return [self.cache] if isinstance(self.cache, str) else self.cache

    def of_each(self, field: Literal["snapshot", "after"], name: str) -> Sequence[int | None]:
        """The value of a field for each of its caches; None where it is not set.

        Raises:
            ConfigError: there are not as many values as caches.
        """
        value = self.snapshot if field == "snapshot" else self.after
        if value is None:
            return [None for _ in self.caches]
        numbers = number_of_each(value)
        if len(numbers) != len(self.caches) or min(numbers) < 1:
            cure = f"Give {[1] * len(self.caches)}, or leave it out."
            raise ConfigError(
                "is not a number, from 1, for each of its"
                f" {format_count(len(self.caches), 'cache')}",
                field=f"components.{name}.{field}",
                value=value,
                cure=cure,
            )
        return numbers

    @property
    def shown_cache(self) -> str:
        """The name of its cache in tables."""
        return self.caches[0] + (f" and {len(self.caches) - 1} more" if self.caches[1:] else "")

    def shuffle_or(self, of_config: shuffle_config.ShuffleConfig) -> shuffle_config.Shuffle:
        """How it is shuffled: its own setting, or the config's."""
        return shuffle_config.shuffle_of(of_config if self.shuffle is None else self.shuffle)

    def asked_numbers(
        self, shuffle: shuffle_config.Shuffle, columns: Mapping[str, str | ColumnConfig]
    ) -> set[str | None]:
        """The names of the numbers of documents that ``where``, ``buckets``, its shuffle and the
        columns of the run ask for.
        """
        names = set() if self.where is None else set(Where(self.where).names)
        names |= leaves_of(columns, self.columns or {})
        return {*names, shuffle.scored_by, None if self.buckets is None else self.buckets.by}

    def document_numbers(self, name: str, cache: TokenCache) -> DocumentNumbers:
        """The numbers of the documents of its cache."""
        return DocumentNumbers(cache, self.attributes or {}, f"components.{name}")

    def check_buckets(self, name: str, cache: TokenCache) -> None:
        """Raises ConfigError for buckets of a cache that was written in packs: documents of several
        buckets share its rows, and each bucket would have all rows.
        """
        if self.buckets is not None and (packs := cache.pack) is not None:
            raise ConfigError(
                f"parts documents that share rows of {cache.path}",
                field=f"components.{name}.buckets",
                value=self.buckets.by,
                cure=f"Use the cache that its packs were made of: {packs.cache}.",
            )

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
        self._check_replicas(path)
        self.validation_in(path.removeprefix("components."), None)
        for field in ("snapshot", "after"):
            self.of_each(field, path.removeprefix("components."))
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
        if self.where is not None:
            Where(self.where, f"{path}.where")
        if self.loss_weight is not None:
            weight_from_config(self.loss_weight, f"{path}.loss_weight")
        if self.shuffle is not None:
            shuffle_config.check_shuffle(self.shuffle, f"{path}.shuffle")
        check_component_budgets(path, self.max_epochs, self.max_tokens, self.max_share, row_tokens)

    def _check_replicas(self, path: str) -> None:
        if self.replicas and self.format is not None:
            cure = "Leave one of them out."
            raise ConfigError(
                "are copies of a cache, and format is for files of another system",
                field=f"{path}.replicas",
                cure=cure,
            )
        if self.replicas and self.caches[1:]:
            cure = "Make each cache a component of its own, with its replicas."
            raise ConfigError(
                "go with one cache, and there are several", field=f"{path}.replicas", cure=cure
            )
        paths = [self.caches[0], *(self.replicas or [])]
        if twice := [one for n, one in enumerate(paths) if one in paths[:n]]:
            cure = "Name each place once."
            raise ConfigError("is named twice", field=f"{path}.replicas", value=twice[0], cure=cure)


def left_out(
    components: Mapping[str, ComponentConfig],
    caches: Mapping[str, TokenCache],
    numbers: Mapping[str, DocumentNumbers],
) -> dict[str, RemovedDocuments | None]:
    """The documents of its cache that each component leaves out; ``numbers`` are of the components
    with ``where`` or buckets. See :func:`~headrace.data.buckets.without_others`.
    """
    removed: dict[str, RemovedDocuments | None] = {}
    for name, component in components.items():
        listed = component.document_filter(name)
        removed[name] = (
            None
            if listed is None
            else listed.of(caches[name], filter_reader(component.remove or ""))
        )
        if component.where is not None:
            where = Where(component.where, f"components.{name}.where")
            removed[name] = without_failing(numbers[name], where, removed[name])
    buckets = {n: c.buckets for n, c in components.items() if c.buckets is not None}
    if not buckets:
        return removed
    of_pairs = [name for name in buckets if is_of_pairs(caches[name], components[name].pairs)]
    return without_others(numbers, buckets, removed, of_pairs)


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
        raise error.but(field=field, cure=cure) from error


def open_caches(
    components: Mapping[str, ComponentConfig],
    snapshots: Mapping[str, Sequence[Snapshot]],
    tokenizer: TokenizerConfig | None,
) -> dict[str, TokenCache]:
    """Opens these snapshots of the caches of a config's components, by name; one tokenizer must
    have made all of them. Raises what ``LmDataConfig.open_caches`` does.
    """
    components = {name: components[name] for name in snapshots}
    replicas = {c.caches[0]: c.replicas for c in components.values() if c.replicas}
    # Components may share a cache, which is opened once.
    contents = {
        name: (
            *((one.path, one.number, one.after) for one in several),
            *(components[name].replicas or ()),
            components[name].format,
        )
        for name, several in snapshots.items()
    }
    first = {content: name for name, content in reversed(contents.items())}
    chosen = {name: several for name, several in snapshots.items() if name in first.values()}
    formats = {name: c.format for name, c in components.items() if c.format is not None}
    shared = open_components(chosen, replicas, formats, job_reader())
    caches = {name: shared[first[content]] for name, content in contents.items()}
    opened = [(name, cache) for name, joined in caches.items() for cache in joined.members]
    if opened and tokenizer is None:
        check_one_tokenizer([(name, c.path, c.ledger.tokenizer) for name, c in opened])
    elif opened and tokenizer is not None:
        with named_in_config():
            loaded = load_tokenizer(tokenizer)
        for _, cache in opened:
            loaded.check_same(cache.ledger.tokenizer, cache.path)
            name_tokenizer(cache, loaded)
    return caches
