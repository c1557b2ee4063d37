"""headrace: ``DataLoader`` over a token cache, in the braided order that is its default, and in a
full shuffle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from peers.interface import BATCH, SEQ_LEN, VOCABULARY, Corpus, Peer, Setting, sharding

SOURCES = {"a": 0.5, "b": 0.3, "c": 0.2}  # shares of the examples, and weights of the mixture


def write(corpus: Corpus, layout: str) -> None:
    from headrace.store.layout import CacheLayout
    from headrace.testing import write_cache

    dtype, compression, sources = layout.split("-")
    form = CacheLayout(dtype, compression="zstd" if compression == "zstd" else "none")
    rows = corpus.rows("int32")
    first = 0
    for name, share in SOURCES.items() if sources == "mixed" else {"all": 1.0}.items():
        last = corpus.examples if name in ("all", "c") else first + int(share * corpus.examples)
        documents = [np.asarray(row).astype(dtype) for row in rows[first:last]]
        write_cache(
            corpus.folder / "headrace" / layout / name,
            [documents],
            vocab_size=VOCABULARY,
            layout=form,
        )
        first = last


def stream(corpus: Corpus, setting: Setting, step: int) -> Iterator[Any]:
    from headrace import DataLoader, MixtureDataset, TokenSeqDataset

    root = setting.options.get("url", str(corpus.folder)) + f"/headrace/{setting.formats[0]}"

    def shuffled(name: str) -> Any:
        dataset = TokenSeqDataset(f"{root}/{name}", SEQ_LEN, name=name)
        if setting.options.get("order") == "full":
            return dataset.shuffle(0)
        return dataset.braid_shuffle(batch_size=BATCH, seed=0)

    stored = corpus.path(setting.dtype).stat().st_size
    budget = {"prefetch_bytes": stored // 4 if setting.options.get("quarter") else 2 * stored}
    if setting.formats[0].endswith("mixed"):
        dataset: Any = MixtureDataset({name: shuffled(name) for name in SOURCES}, SOURCES, BATCH)
        loader = DataLoader(dataset, sharding=sharding(), **budget)
    else:
        loader = DataLoader(shuffled("all").repeat(), BATCH, sharding=sharding(), **budget)
    with loader, loader.iter_from_step(step) as batches:
        for batch in batches:
            yield batch.token_ids


def _setting(name: str, kind: str, layout: str, *, quick: bool = False, **options: Any) -> Setting:
    dtype = "uint16" if layout.startswith("uint16") else "int32"
    return Setting(name, kind, "streams", dtype, options, formats=(layout,), quick=quick)


PEER = Peer(
    title="headrace",
    packages=("headrace",),
    install="uv sync",
    settings=(
        _setting(
            "2-byte, 4 times the budget", "default", "uint16-none-all", quick=True, quarter=True
        ),
        _setting(
            "4-byte, 4 times the budget", "documented", "uint32-none-all", quick=True, quarter=True
        ),
        _setting("2-byte, within the budget", "documented", "uint16-none-all"),
        _setting("4-byte, within the budget", "documented", "uint32-none-all", quick=True),
        _setting("4-byte, 3 sources", "documented", "uint32-none-mixed"),
        _setting("4-byte, full shuffle", "documented", "uint32-none-all", order="full"),
        _setting("4-byte, zstd, 4 times the budget", "documented", "uint32-zstd-all", quarter=True),
    ),
    write=write,
    stream=stream,
    modules=("headrace.feed.loader", "headrace.data.mixture", "headrace.data.token_seq"),
    resumes="iter_from_step(step)",
    note="headrace stores tokens in the narrowest dtype, 2 bytes here; its 4-byte rows are like"
    " for like.",
)
