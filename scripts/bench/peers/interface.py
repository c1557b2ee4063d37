"""What a peer is: how it writes the corpus in its own format, and how its users read it back as
sharded jax arrays.

A file of this folder defines one ``PEER``. It imports its library only inside ``write`` and
``stream``, so that the bench can name what is missing. ``stream`` is a generator: what stands after
its ``yield`` (in a ``finally``) is the cleanup.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SEQ_LEN = 2048
BATCH = 128
VOCABULARY = 50_000
DTYPES = {"2-byte": "uint16", "4-byte": "int32"}
CHUNK = 8192  # rows that the writers hold in memory at a time


@dataclass(frozen=True)
class Corpus:
    """The examples, the same for all.

    Attributes:
        folder: Holds ``rows.int32`` and ``rows.uint16``, the same rows, and a folder for each
            peer's format.
        examples: Rows of ``SEQ_LEN`` tokens.
    """

    folder: Path
    examples: int

    @property
    def steps(self) -> int:
        """Whole batches in an epoch."""
        return self.examples // BATCH

    def path(self, dtype: str) -> Path:
        """The flat file of the rows in a dtype."""
        return self.folder / f"rows.{dtype}"

    def rows(self, dtype: str) -> np.memmap:
        """The examples ``[examples, SEQ_LEN]``, mapped."""
        return np.memmap(self.path(dtype), dtype, "r", shape=(self.examples, SEQ_LEN))

    def create(self) -> None:
        """Writes the flat files: random tokens, so that no two rows begin alike."""
        rng = np.random.default_rng(0)
        with self.path("int32").open("wb") as wide, self.path("uint16").open("wb") as narrow:
            for first in range(0, self.examples, CHUNK):
                rows = rng.integers(
                    0, VOCABULARY, (min(CHUNK, self.examples - first), SEQ_LEN), np.int32
                )
                wide.write(rows.tobytes())
                narrow.write(rows.astype(np.uint16).tobytes())

    def chunks(self, dtype: str) -> Iterator[np.ndarray]:
        """The examples in order, ``CHUNK`` rows at a time."""
        rows = self.rows(dtype)
        for first in range(0, self.examples, CHUNK):
            yield np.array(rows[first : first + CHUNK])


@dataclass(frozen=True)
class Setting:
    """One way to run a peer.

    Attributes:
        name: Short, for the first column.
        kind: ``"default"`` (as its documentation begins), ``"documented"`` (another of its
            documented ways), ``"own code"`` (the user wrote the gather), ``"floor"`` or
            ``"reference"``.
        whole: What of the corpus must lie in memory: ``"loads all"``, ``"maps all"`` or
            ``"streams"``.
        dtype: Of the tokens as they are stored, and delivered.
        options: Read by the peer's ``stream``.
        period: The stretch that is timed is a multiple of this many batches.
        formats: Which of the peer's formats must be written.
        quick: Part of ``--quick``.
    """

    name: str
    kind: str
    whole: str
    dtype: str
    options: Mapping[str, Any] = field(default_factory=dict)
    period: int = 1
    formats: tuple[str, ...] = ("",)
    quick: bool = False


def both_dtypes(
    name: str,
    kind: str,
    whole: str,
    options: Mapping[str, Any] | None = None,
    *,
    layout: str = "{dtype}",
) -> list[Setting]:
    """A setting with 2-byte tokens, and one with 4-byte tokens, from a format of its own each."""
    return [
        Setting(
            f"{width}, {name}",
            kind,
            whole,
            dtype,
            options or {},
            formats=(layout.format(dtype=dtype),),
        )
        for width, dtype in DTYPES.items()
    ]


@dataclass(frozen=True)
class Peer:
    """A loader.

    Attributes:
        title: As its authors call it.
        packages: Distributions that must be installed.
        install: The command that installs them.
        settings: How it is run.
        write: ``write(corpus, format)`` puts the examples into ``corpus.folder`` in the peer's own
            format.
        stream: ``stream(corpus, setting, step)`` yields delivered batches, endlessly, from batch
            ``step`` on; each is a sharded jax array ``[BATCH, SEQ_LEN]`` of integers.
        modules: What ``stream`` imports; imported before any clock starts.
        resumes: How it is taken up again at a late step; empty: it is not measured.
        note: A sentence for the reader of the table.
    """

    title: str
    packages: tuple[str, ...]
    install: str
    settings: tuple[Setting, ...]
    write: Callable[[Corpus, str], None]
    stream: Callable[[Corpus, Setting, int], Iterator[Any]]
    modules: tuple[str, ...] = ()
    resumes: str = ""
    note: str = ""


@functools.cache
def sharding() -> Any:
    """Rows over all devices."""
    import jax

    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("data",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))


def place(batch: np.ndarray) -> Any:
    """A numpy batch as a sharded jax array: what users of loaders that give numpy write."""
    import jax

    return jax.device_put(batch, sharding())
