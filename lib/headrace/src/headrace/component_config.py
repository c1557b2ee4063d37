"""``ComponentConfig``: one source of a mixture, as a config names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headrace.index.packing_config import PackingConfig
from headrace.index.shuffle_config import ShuffleConfig
from headrace.ingest.source import SourceConfig


@dataclass(frozen=True)
class ComponentConfig:
    """One source of a mixture.

    Attributes:
        cache: Path or URL of its token cache.
        weight: A number, ``{step: {step: w}}`` or ``{linear: {step: w}}``: a function of the global step. None: 1, or
            what ``weights``, ``stages`` or an amendment says.
        source: Text to build the cache from, if it does not exist (``LmDataConfig.build_caches``).
        shuffle: How this component is shuffled; None: as the config says.
        packing: How its documents are packed into rows, ``{}`` for the defaults; None: rows are cut from the stream of
            its tokens, wherever documents end.
        max_epochs: Most passes over it, may be a fraction; None: as the config says.
        max_tokens: Most tokens of it in the whole run; those of packed rows count with their padding.
        max_share: Largest share of a batch that it may have at any step.
        expected_tokens: Tokens that its cache will hold: what planning goes by while there is no cache. Training takes
            no notice of it.
        remove: File of documents to leave out; see :class:`~headrace.data.document_filter.DocumentFilter`.
        remove_not_found: What becomes of numbers in that file that no document has: ``refuse`` them, or ``count`` them
            and go on.
        loss_mask: Leaf of the cache that says which tokens are trained on; ``auto``: that of chats, if there is one;
            ``none``: all tokens are.
    """

    cache: str
    weight: float | dict[str, Any] | None = None
    source: SourceConfig | None = None
    shuffle: ShuffleConfig | None = None
    packing: PackingConfig | None = None
    max_epochs: float | None = None
    max_tokens: int | None = None
    max_share: float | None = None
    expected_tokens: float | None = None
    remove: str | None = None
    remove_not_found: Literal["refuse", "count"] = "refuse"
    loss_mask: str = "auto"
