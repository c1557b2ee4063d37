"""Built and shuffled in one command: the parts that two commands give, whatever interrupted it."""

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CacheError, PlanMismatchError, SourceError
from headrace.ingest import (
    LeafConfig,
    ReshuffleConfig,
    SourceConfig,
    TokenizerConfig,
    build_cache,
    reshuffle,
)
from headrace.ingest.build import plan_build
from headrace.ingest.shuffle_plan import ReshuffleCost
from headrace.store import files, open_cache
from headrace.store.ledger import read_ledger
from headrace.store.verify import invalidate

Tree = Callable[[str | Path], dict[str, bytes]]
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
SMALL: dict[str, Any] = {
    "part_bytes": 1500,
    "chunk_tokens": 64,
    "progress": False,
    "engine": "inline",
}
HOW = ReshuffleConfig(7, part_bytes=2000)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory: many files are flushed to it."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as root:
        yield Path(root)


@pytest.fixture
def source(scratch: Path) -> SourceConfig:
    for i in range(3):
        lines = [
            json.dumps({"text": f"file {i} line {j} " * (j % 5), "id": f"{i}/{j}"})
            for j in range(25)
        ]
        (scratch / "corpus").mkdir(exist_ok=True)
        (scratch / "corpus" / f"{i}.jsonl").write_text("\n".join(lines))
    return SourceConfig([str(scratch / "corpus")], leaves={"id": LeafConfig("id")})


def build(
    source: SourceConfig,
    root: Path,
    how: ReshuffleConfig = HOW,
    announce: Callable[[ReshuffleCost], None] | None = None,
    **options: Any,
) -> Any:
    options = {**SMALL, "how": how, **options}
    return plan_build(source, TokenizerConfig("bytes"), str(root), **options).build(announce)


def test_it_is_what_two_commands_give(source: SourceConfig, scratch: Path, tree: Tree):
    plain = build_cache(source, TokenizerConfig("bytes"), str(scratch / "plain"), **SMALL)
    reshuffle(str(scratch / "plain"), str(scratch / "two"), HOW, progress=False)
    costs: list[Any] = []
    report = build(source, scratch / "one", announce=costs.append)
    one = tree(scratch / "one")
    two = tree(scratch / "two")
    for ledger in ("ledger.json", "ledger.bin"):  # they tell where they came from
        assert one.pop(ledger) != two.pop(ledger)
    assert one == two
    ledgers = [read_ledger(str(scratch / name)) for name in ("one", "two")]
    shuffled = [dict(ledger.metadata["shuffled"]) for ledger in ledgers]
    assert [s.pop("cache") for s in shuffled] == [None, str(scratch / "plain")]
    assert shuffled[0] == shuffled[1]
    assert (report.documents, report.tokens, report.path) == (
        plain.documents,
        plain.tokens,
        str(scratch / "one"),
    )
    assert costs[0].documents == plain.documents
    assert open_cache(scratch / "one").fingerprint == open_cache(scratch / "two").fingerprint
    again = build(source, scratch / "one")
    assert (again.parts_built, again.documents, again.text_bytes) == (
        0,
        plain.documents,
        plain.text_bytes,
    )


class StoppedError(Exception):
    pass


def test_stopped_anywhere_it_goes_on(source: SourceConfig, scratch: Path, tree: Tree):
    build(source, scratch / "whole")
    whole = tree(scratch / "whole")
    really = files.write_atomic
    stopped = 0
    for stop_at in [1, 2, 3, *range(5, 200, 3)]:
        root = scratch / f"at{stop_at}"
        calls = 0

        def dying(*given: Any, stop_at: int = stop_at, **named: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == stop_at:
                raise StoppedError
            really(*given, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "write_atomic", dying)
            try:
                build(source, root)
            except StoppedError:
                stopped += 1
        build(source, root)
        assert tree(root) == whole, stop_at
        if calls < stop_at:
            break
    assert stopped > 5


def test_other_settings_and_changed_sources_are_refused(
    source: SourceConfig, scratch: Path, tree: Tree
):
    root = scratch / "c"
    build(source, root)
    before = tree(root)
    with pytest.raises(PlanMismatchError, match="seed 7 there, 8 now"):
        build(source, root, ReshuffleConfig(8, part_bytes=2000))
    with pytest.raises(PlanMismatchError, match="part_bytes 1500 there, 99 now"):
        build(source, root, part_bytes=99)
    with pytest.raises(CacheError, match="holds another cache"):
        build(source, scratch / "plain") if build_cache(
            source, TokenizerConfig("bytes"), str(scratch / "plain"), **SMALL
        ) else None
    (scratch / "corpus" / "0.jsonl").write_text('{"text": "new", "id": "n"}')
    with pytest.raises(
        SourceError, match=r"0\.jsonl: changed after the cache was built.*--restart"
    ):
        build(source, root)
    assert tree(root) == before
    assert build(source, root, restart=True).documents == 51


def test_a_part_that_is_lost_is_made_anew_from_the_sources(
    source: SourceConfig, scratch: Path, tree: Tree
):
    root = scratch / "c"
    build(source, root)
    before = tree(root)
    invalidate(str(root), ["00001"])
    build(source, root)
    assert tree(root) == before
