"""Encodes with ``gigatoken``, tens of times faster than ``tokenizers``, where it gives the same
ids.

Differences are handled before the build: :func:`why_not` names unsupported features of a tokenizer,
and :mod:`headrace.ingest.code_points` finds the code points that the two libraries classify
differently; texts with one of these are encoded by ``tokenizers``. The rest is compared during the
build (:mod:`headrace.ingest.part_builder`).

Its caches of words grow without bound, by up to 8 bytes per byte of text (random words); source
code needs .5 of a byte. The encoder is therefore recreated, with empty caches, once the process
uses 256 MiB more than when it was made or, if the system does not report that, after 32 MiB of
text.

Price: 1 us per text, 8 to 12 ns per byte on one core; .1 s to make the encoder for 32,000 tokens.
It encodes one text at a time and holds the interpreter's lock: processes of a pool use all cores,
threads do not.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.ingest.choices import Kind
from headrace.ingest.code_points import (
    Encode,
    Ranges,
    byte_names,
    differing_code_points,
    digest_of,
    known_or_computed,
    probe_of,
    table_of,
)
from headrace.ingest.progress import EncoderCounts
from headrace.ingest.tokenize import FileTokenizer, Tokenizer
from headrace.store.ledger import canonical_tokenizer

_log = logging.getLogger(__name__)

PACKAGE = "gigatoken"
MOST_CACHE_BYTES = 256 << 20
_CACHE_BYTES_A_CHAR = 8
_PAGE = 4096


def why_not(tokenizer: Tokenizer, kind: Kind) -> str | None:
    """What ``gigatoken`` does not support in a tokenizer or a kind of documents; None if it
    supports them.
    """
    if not isinstance(tokenizer, FileTokenizer):
        return f"the tokenizer {tokenizer.path!r} is no tokenizer.json"
    if kind != "text":
        return f"documents of kind {kind!r} need more than ids"
    if not is_installed():
        return f"the package {PACKAGE} is not installed"
    if tokenizer.special_tokens_in_text == "text":
        return "special tokens that a text spells out are to be text"
    for reason in _uncovered(json.loads(tokenizer.rules)):
        return reason
    try:
        _load(tokenizer.rules.decode())
    except Exception as error:  # noqa: BLE001
        # the library raises plain Exception, with its own words for it
        return f"gigatoken does not load it ({error})"
    return None


def code_points_of(tokenizer: FileTokenizer) -> Ranges:
    """The code points on which ``gigatoken`` and ``tokenizers`` disagree, for a supported
    tokenizer.
    """
    content = json.loads(tokenizer.rules)
    versions = [f"{name} {importlib.metadata.version(name)}" for name in (PACKAGE, "tokenizers")]

    def pair(content: dict[str, Any]) -> tuple[Encode, Encode]:
        rules = canonical_tokenizer(content)
        plain = FileTokenizer(rules, tokenizer.path, eos=None)
        fast = _load(rules.decode())
        return (
            lambda texts: [ids.tobytes() for ids in plain.encode_plain(texts)],
            lambda texts: [fast(text).tobytes() for text in texts],
        )

    return known_or_computed(
        digest_of(tokenizer.rules, *versions),
        lambda: differing_code_points(pair(content), pair(probe_of(content))),
    )


class GigatokenEncoder:
    """Encodes texts with ``gigatoken``, those with a code point that differs with ``tokenizers``.

    Args:
        tokenizer: The tokenizer, which encodes the latter.
        code_points: Those that differ.
        resident_bytes: Returns the current memory of the process; None if the system does not
            report it.
    """

    def __init__(
        self,
        tokenizer: FileTokenizer,
        code_points: Ranges,
        resident_bytes: Callable[[], int | None] = lambda: resident_bytes(),
    ) -> None:
        self.tokenizer = tokenizer
        self._content = tokenizer.rules.decode()
        self._resident_bytes = resident_bytes
        self._differs = table_of(code_points)
        self._first_differing = min((start for start, _ in code_points), default=len(self._differs))
        self._lock = threading.Lock()
        self._counts = EncoderCounts()
        self._start()

    def __call__(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text, uint32."""
        slow = self._differing(texts)
        ids: dict[int, np.ndarray] = {}
        with self._lock:  # it encodes one text at a time
            for i, text in enumerate(texts):
                if i not in slow and (encoded := self._encode(text)) is not None:
                    ids[i] = encoded
            self._counts += EncoderCounts(len(ids), len(texts) - len(ids))
        remaining = [i for i in range(len(texts)) if i not in ids]
        if remaining:
            ids.update(
                zip(
                    remaining,
                    self.tokenizer.encode_plain([texts[i] for i in remaining]),
                    strict=True,
                )
            )
        return [ids[i] for i in range(len(texts))]

    def take_counts(self, compared: int = 0) -> EncoderCounts:
        """Counters since the last call, with the number of compared documents."""
        with self._lock:
            counts = self._counts
            self._counts = EncoderCounts()
        return counts + EncoderCounts(compared=compared)

    def _differing(self, texts: Sequence[str]) -> set[int]:
        """Which of the texts have a code point that differs."""
        all_ascii_same = self._first_differing > 127
        wide = [i for i, text in enumerate(texts) if not (all_ascii_same and text.isascii())]
        if not wide:
            return set()
        chosen = [texts[i] for i in wide]
        points = np.frombuffer("".join(chosen).encode("utf-32-le", "surrogatepass"), np.uint32)
        suspects = np.flatnonzero(points >= self._first_differing)
        hits = suspects[self._differs[points[suspects]]]
        if not hits.size:
            return set()
        stops = np.cumsum([len(text) for text in chosen])
        return {wide[i] for i in np.unique(np.searchsorted(stops, hits, side="right")).tolist()}

    def _encode(self, text: str) -> np.ndarray | None:
        """The ids of a text; None if the library fails."""
        try:
            ids = self._fast(text)
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            self._restart()
            return None
        self._chars += len(text)
        if self._chars >= self._next_look:
            self._next_look = self._chars + (1 << 20)
            resident = self._resident_bytes()
            grown = (
                self._chars * _CACHE_BYTES_A_CHAR if resident is None else resident - self._resident
            )
            if grown >= MOST_CACHE_BYTES:
                self._restart()
                self._counts += EncoderCounts(restarts=1)
        return ids

    def _restart(self) -> None:
        del self._fast  # its memory first
        self._start()

    def _start(self) -> None:
        self._fast = _load(self._content)
        self._chars = 0
        self._next_look = 1 << 20
        self._resident = self._resident_bytes() or 0


def resident_bytes() -> int | None:
    """Memory of this process; None if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return None


def is_installed() -> bool:
    """Whether the package is there."""
    return importlib.util.find_spec(PACKAGE) is not None


def _load(content: str) -> Callable[[str], np.ndarray]:
    """A function that encodes one text. Batches would be ``awkward`` arrays, whose import takes a
    second.
    """
    library: Any = importlib.import_module(PACKAGE)
    return library.Tokenizer.from_json(content).backend.encode


def _uncovered(content: dict[str, Any]) -> Iterator[str]:
    model = content.get("model") or {}
    added = content.get("added_tokens") or []
    if model.get("type") != "BPE":
        yield f"its model is {model.get('type')}, not BPE"
        return
    if content.get("normalizer") is not None:
        yield f"it has a normalizer ({content['normalizer'].get('type')})"
    for key in ("byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            yield f"its model has {key}"
    yield from _uncovered_cuts(content.get("pre_tokenizer") or {})
    names = set(byte_names())
    listed = {str(token["content"]) for token in added}
    if not names <= set(model["vocab"]):
        yield "its vocabulary lacks the token of a byte"
    if odd := next(
        (t for t in model["vocab"] if t not in listed and not names.issuperset(t)), None
    ):
        yield f"its vocabulary has {odd!r}, which spells no bytes"
    for flag in ("lstrip", "rstrip", "single_word"):
        if token := next((t for t in added if t.get(flag)), None):
            yield f"its added token {token['content']!r} is marked {flag}"
    if len({bool(token.get("normalized")) for token in added}) > 1:
        yield "only some of its added tokens are marked normalized"


def _uncovered_cuts(rules: dict[str, Any]) -> Iterator[str]:
    """What is unsupported in a pre-tokenizer: it must be ``ByteLevel``, or a regex split followed
    by ``ByteLevel``.
    """
    steps: list[dict[str, Any]] = (
        rules.get("pretokenizers", []) if rules.get("type") == "Sequence" else [rules]
    )
    *splits, last = steps or [{}]
    if last.get("type") != "ByteLevel":
        yield f"its pre-tokenizer ends with {last.get('type')}, not ByteLevel"
    if last.get("add_prefix_space"):
        yield "its pre-tokenizer puts a space before each text"
    if bool(splits) == bool(last.get("use_regex", True)):
        yield "its pre-tokenizer splits twice, or not at all"
    for step in splits:
        regex = (step.get("pattern") or {}).get("Regex")
        if (
            step.get("type") != "Split"
            or regex is None
            or step.get("behavior") != "Isolated"
            or step.get("invert")
        ):
            yield f"its pre-tokenizer has a step {step.get('type')!r} that it does not know"
