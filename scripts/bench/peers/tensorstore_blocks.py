"""TensorStore reading headrace's zstd cache in order, a batch's blocks in one read, nothing
shuffled or delivered: what decoding alone allows. A reference, no loader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peers import headrace_loader
from peers.interface import BATCH, SEQ_LEN, Corpus, Peer, Setting

LAYOUT = "uint32-zstd-all"


def stream(corpus: Corpus, setting: Setting, step: int) -> Iterator[Any]:
    import tensorstore as ts

    (data,) = (corpus.folder / "headrace" / LAYOUT / "all").rglob("data/zarr.json")
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{data.parent}/"},
        "recheck_cached_data": "open",
    }
    context = ts.Context({"cache_pool": {"total_bytes_limit": 64 << 20}})
    store = ts.open(spec, read=True, context=context).result()
    while True:
        at = step % corpus.steps * BATCH * SEQ_LEN
        yield store[at : at + BATCH * SEQ_LEN].read(order="C").result().reshape(BATCH, SEQ_LEN)
        step += 1


PEER = Peer(
    title="TensorStore",
    packages=("tensorstore",),
    install="uv sync",
    settings=(
        Setting("4-byte, zstd in order, numpy", "reference", "streams", "int32", formats=(LAYOUT,)),
    ),
    write=headrace_loader.write,
    stream=stream,
    modules=("tensorstore",),
)
