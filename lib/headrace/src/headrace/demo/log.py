"""``RunLog``: one record a step, to ``metrics.jsonl`` and to the screen, and what can be said of all of them."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from jaxtyping import Float64, Int64

from headrace.demo.screen import Progress, TrainingLine
from headrace.index.blend import Blend

_RECENT = 20  # steps that the figures on the screen are means of


@dataclass(frozen=True)
class StepRecord:
    """One step of training, as it stands in ``metrics.jsonl``.

    Attributes:
        step: Its number.
        loss: Training loss, in nats a token.
        devices: Devices that the batch was split over.
        wait_s: Seconds that training waited for the batch.
        train_s: Seconds of the update.
        tokens: Tokens of the batch.
        rows: Rows of the batch that came from each source.
        reads_per_example: Reads of the store for each row, since this loader was opened.
        digest: Names the batch: equal digests, equal tokens.
    """

    step: int
    loss: float
    devices: int
    wait_s: float
    train_s: float
    tokens: int
    rows: dict[str, int]
    reads_per_example: float
    digest: str


class RunLog:
    """The steps of a run.

    Args:
        path: The file to write, one JSON line a step.
        weights: The weights of the mixture, by source.
        steps: Steps of the run.
        line: Where to show the figures.
    """

    def __init__(self, path: Path, weights: Mapping[str, object], steps: int, line: TrainingLine) -> None:
        self.records: list[StepRecord] = []
        self.names = tuple(weights)
        self.wanted: Float64[np.ndarray, "steps sources"] = Blend(weights).at(np.arange(steps))
        self._line = line
        self._recent: deque[StepRecord] = deque(maxlen=_RECENT)
        self._file = path.open("w", encoding="utf-8")

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, record: StepRecord) -> None:
        """Writes and shows a step."""
        if self.records and self.records[-1].devices != record.devices:
            self._recent.clear()
        self.records.append(record)
        self._recent.append(record)
        self._file.write(json.dumps(asdict(record)) + "\n")
        self._line.update(self._progress(record))

    @property
    def losses(self) -> Float64[np.ndarray, " steps"]:
        """Loss of each step so far."""
        return np.array([record.loss for record in self.records])

    @property
    def rows(self) -> Int64[np.ndarray, "steps sources"]:
        """Rows that each step so far took from each source."""
        return np.array([[record.rows[name] for name in self.names] for record in self.records])

    @property
    def digests(self) -> list[str]:
        """Digest of the batch of each step so far."""
        return [record.digest for record in self.records]

    @property
    def waiting_share(self) -> float:
        """Time waited for data / time of the run, 0 to 1. Steps that compile the model count for neither."""
        return _waiting_share(self._timed())

    @property
    def tokens_per_s(self) -> float:
        """Tokens trained on, a second. Steps that compile the model do not count."""
        return _per_second(self._timed())

    @property
    def worst_deviation(self) -> float:
        """Largest distance, at any step and for any source, of rows so far from the wanted number, in rows."""
        rows = self.rows
        wanted = rows.sum(axis=1, keepdims=True) * self.wanted[: len(rows)]
        return float(np.abs(np.cumsum(rows - wanted, axis=0)).max())

    def _timed(self) -> list[StepRecord]:
        """The steps but for those that compiled the model: the first one on each number of devices."""
        return [now for before, now in itertools.pairwise(self.records) if before.devices == now.devices]

    def _progress(self, record: StepRecord) -> Progress:
        recent = list(self._recent)
        timed = self._timed()[-_RECENT:] or recent
        rows = np.array([[r.rows[name] for name in self.names] for r in recent])
        wanted = self.wanted[recent[0].step : record.step + 1].mean(axis=0)
        shares = rows.sum(axis=0) / rows.sum()
        return Progress(
            step=record.step + 1,
            steps=len(self.wanted),
            devices=record.devices,
            loss=sum(r.loss for r in recent) / len(recent),
            tokens_per_s=_per_second(timed),
            waiting=_waiting_share(timed),
            reads_per_example=record.reads_per_example,
            mixture={
                name: (float(share), float(want)) for name, share, want in zip(self.names, shares, wanted, strict=True)
            },
        )


def _waiting_share(records: list[StepRecord]) -> float:
    return sum(r.wait_s for r in records) / max(sum(r.wait_s + r.train_s for r in records), 1e-9)


def _per_second(records: list[StepRecord]) -> float:
    return sum(r.tokens for r in records) / max(sum(r.wait_s + r.train_s for r in records), 1e-9)
