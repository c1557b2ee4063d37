"""Snapshots: changes add up, one file is old or new, all of them stay readable, and what is damaged
is refused.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import ComponentConfig, LmDataConfig
from headrace.data.documents import DocumentFilter
from headrace.data.mixture import mixture_of
from headrace.errors import CacheCorruptError, CacheError, CacheMissingError, ConfigError
from headrace.ingest import SourceConfig, TokenizerConfig, append_cache, build_cache, reshuffle
from headrace.ingest.reshuffle import ReshuffleConfig
from headrace.mix import AmendmentConfig
from headrace.order.intervals import Intervals
from headrace.store import TokenCache, open_cache
from headrace.store.joined import history_problem, open_components
from headrace.store.lease import lease, owning
from headrace.store.remote import filesystem
from headrace.store.snapshots import (
    SNAPSHOTS_NAME,
    Change,
    History,
    Member,
    Snapshot,
    add_appended,
    choose_snapshot,
    group_path,
    groups_of,
    history_of,
    member_path,
    remove_documents,
    remove_snapshots,
)
from headrace.testing import FaultProxy, tiny_cache, web_server, write_cache
from headrace.testing.caches import grow, remove

Tree = Callable[[str | Path], dict[str, bytes]]


def numbers(*documents: int) -> Intervals:
    return Intervals.of_numbers(np.array(documents, np.int64))


def changed(root: str, changes: list[int | list[int]]) -> list[tuple[int, set[int]]]:
    """Makes a cache of three documents, appends so many or removes these; gives the documents and
    what is removed of them, as of each snapshot.
    """
    tiny_cache(root, documents=3)
    there = 3
    gone: set[int] = set()
    known = [(there, gone)]
    for change in changes:
        if isinstance(change, int):
            there = grow(root, change, seed=change).num_documents
        else:
            removed = {number % there for number in change}
            if removed <= gone:
                assert remove(root, *removed) == len(known)
                continue
            gone = gone | removed
            remove(root, *removed)
        known.append((there, gone))
    return known


CHANGES = st.lists(
    st.one_of(st.integers(1, 5), st.lists(st.integers(0, 99), min_size=1, max_size=4)), max_size=5
)


@settings(max_examples=12)
@given(changes=CHANGES, data=st.data())
def test_all_snapshots_stay_readable(
    tmp_path_factory: pytest.TempPathFactory, changes: list[int | list[int]], data: st.DataObject
):
    root = str(tmp_path_factory.mktemp("grown") / "web")
    known = changed(root, changes)
    history = history_of(root)
    assert history.newest == len(known)
    newest = open_cache(root)
    for number, (documents, gone) in enumerate(known, start=1):
        cache = open_cache(root, number)
        assert (cache.snapshots[0].number, cache.num_documents) == (number, documents)
        assert cache.removed() == numbers(*gone)
        tokens = cache.tokens(0, cache.num_tokens)
        assert np.array_equal(tokens, newest.tokens(0, cache.num_tokens))
    # and what came after one of them
    after = data.draw(st.integers(0, len(known) - 1))
    first = known[after - 1][0] if after else 0
    gained = Snapshot(root, history, len(known), after)
    documents, gone = known[-1]
    assert (
        history.newest == 1
        or sum(history.members[number].documents for number in gained.members) == documents - first
    )
    assert gained.removed() == numbers(*(number - first for number in gone if number >= first))
    assert history_problem(root) == (len(history.members), "")


def test_data_and_ledger_stay_as_they_are(tmp_path: Path, tree: Tree):
    cache = tiny_cache(tmp_path / "c", documents=30)
    before = tree(cache.path)
    history, fresh = remove_documents(cache.path, cache.as_member, numbers(3, 7))
    assert (history.newest, fresh) == (2, numbers(3, 7))
    raw = (tmp_path / "c" / SNAPSHOTS_NAME).read_bytes()
    again = remove_documents(cache.path, cache.as_member, numbers(7))
    assert again == (history, Intervals.empty())  # nothing new: the same file
    assert (tmp_path / "c" / SNAPSHOTS_NAME).read_bytes() == raw
    grow(cache.path, 4)
    assert remove(cache.path, 7, 8, 31) == 4
    after = tree(cache.path)
    assert {name: after[name] for name in before} == before


def test_what_is_not_of_the_cache_is_refused(tmp_path: Path):
    one, other = (tiny_cache(tmp_path / name, documents=30, seed=n) for n, name in enumerate("ab"))
    remove(one.path, 3)
    shutil.copy(tmp_path / "a" / SNAPSHOTS_NAME, tmp_path / "b")
    with pytest.raises(
        CacheCorruptError, match=r"is of another cache.*headrace cache remove .*/b --file"
    ):
        open_cache(other.path)
    with pytest.raises(CacheCorruptError):  # nothing is written over them
        remove(other.path, 4)
    assert "is of another cache" in history_problem(other.path)[1]
    for gone, expected in ((29, ""), (30, "names document 30, and snapshot 2 has 30")):
        (tmp_path / "a" / SNAPSHOTS_NAME).unlink()
        remove(one.path, gone)
        assert history_problem(one.path)[1] == expected
    assert open_cache(one.path, 1).num_documents  # for which nobody asks


def test_damage_is_refused_with_the_commands_that_make_it_again(tmp_path: Path):
    root = tiny_cache(tmp_path / "c", documents=30).path
    grow(root, 5)
    raw = (tmp_path / "c" / SNAPSHOTS_NAME).read_bytes()
    for damaged in (b"{}", raw[:-9], raw.replace(b'"documents":5', b'"documents":6')):
        (tmp_path / "c" / SNAPSHOTS_NAME).write_bytes(damaged)
        with pytest.raises(CacheCorruptError, match="is damaged") as error:
            history_of(root)
        assert error.value.field == "snapshots"
        assert f"headrace cache remove {root}" in str(error.value.cure)
    (tmp_path / "c" / SNAPSHOTS_NAME).write_bytes(raw)
    tiny_cache(member_path(root, 1), documents=5, seed=9)
    with pytest.raises(CacheCorruptError, match=r"is not what was appended.* Restore its folder"):
        open_cache(root)
    shutil.rmtree(member_path(root, 1))
    with pytest.raises(CacheMissingError, match=r"Restore its folder.*snapshot: 1\."):
        open_cache(root)
    assert history_problem(root)[1].startswith(f"names {member_path(root, 1)}, which is not")
    with owning(root):
        remove_snapshots(root)
    assert history_problem(root) == (1, "")
    assert history_problem(str(tmp_path / "nothing")) == (1, "")


def test_snapshots_that_there_are_not_are_named():
    history = History(Member(documents=9), (Change(removed=((3, 4),)), Change(Member("", 5))))
    for number, after, expected in (
        (4, 0, "snapshot = 4: is not a snapshot of web, which has 3. Give 1 to 3, or leave it out"),
        (0, 0, "snapshot = 0: is not a snapshot of web"),
        (2, 2, "Give one after 2, up to 3"),
        (2, 1, "begins where nothing was appended to web up to snapshot 2"),
    ):
        with pytest.raises(ConfigError) as error:
            choose_snapshot("web", number, history, after)
        assert expected in str(error.value)
    with pytest.raises(ConfigError, match=r"which has 1\. Give 1, or leave"):
        choose_snapshot(tiny_cache().path, 2, History())
    with pytest.raises(CacheMissingError, match="there is no such folder"):
        choose_snapshot("web", 2, History())


def test_who_else_writes_is_waited_for_by_an_error(tmp_path: Path):
    root = tiny_cache(tmp_path / "c", documents=30).path
    built = TokenCache.open_member(root).as_member
    with lease(root), pytest.raises(CacheError, match="is being written by"):
        remove(root, 1)
    with pytest.raises(ConfigError, match="can be read from, not written to"):
        remove_documents("https://example.org/c", built, numbers(1))
    other = Member("sha256:12", 9)
    with pytest.raises(CacheError, match="has 1 caches in one by now, and this was to be number 3"):
        add_appended(root, built, 2, other)
    assert add_appended(root, built, 1, other).newest == 2
    assert add_appended(root, built, 1, other).newest == 2  # a second time: nothing
    with pytest.raises(CacheError, match="has 2 caches in one by now, and this was to be number 2"):
        add_appended(root, built, 1, Member("sha256:34", 9))


def test_readers_see_the_list_before_or_behind(tmp_path: Path):
    root = tiny_cache(tmp_path / "web", documents=3).path
    seen: set[int] = set()
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.add(open_cache(root).num_documents)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(5):
        grow(root, 2)
    over.set()
    reader.join()
    assert seen <= {3, 5, 7, 9, 11, 13}


def test_a_component_of_several_caches_has_a_snapshot_of_each(tmp_path: Path):
    a = str(tmp_path / "a")
    b = str(tmp_path / "b")
    tiny_cache(a, documents=3, seed=1)
    tiny_cache(b, documents=4, seed=2)
    grow(a, 5)
    remove(a, 6)
    remove(b, 1)
    newest = [Snapshot(a, history_of(a), 3), Snapshot(b, history_of(b), 2)]
    first = [replace(one, number=1) for one in newest]
    opened = open_components({"both": newest, "first": first})
    assert [opened["both"].num_documents, opened["first"].num_documents] == [12, 7]
    assert opened["both"].removed() == numbers(6, 9)
    assert opened["first"].removed() == Intervals.empty()
    assert opened["first"].removed([3, 2]) == numbers(4)  # of its own documents


def test_a_replica_delivers_what_was_appended(tmp_path: Path):
    root = str(tmp_path / "a")
    tiny_cache(root, documents=3, seed=1)
    grow(root, 5)
    copy = shutil.copytree(root, tmp_path / "copy")
    shutil.rmtree(f"{member_path(root, 1)}/parts")
    web = {"web": ComponentConfig(root, replicas=[str(copy)])}
    replicated = LmDataConfig(web).open_caches()["web"]
    assert np.array_equal(replicated.document(7), open_cache(str(copy)).document(7))


def test_lists_of_documents_hold_through_snapshots(tmp_path: Path):
    root = str(tmp_path / "web")
    first = tiny_cache(root, documents=3)
    cache = grow(root, 4)
    (tmp_path / "list.txt").write_text(f"# cache: {first.fingerprint}\n2\n5\n")
    assert DocumentFilter.load(str(tmp_path / "list.txt")).of(cache).documents.total == 2
    assert DocumentFilter(np.array([True, False, True])).of(cache).documents.total == 2
    with pytest.raises(ConfigError, match="is a bitmap of 4 documents, but the cache has 7"):
        DocumentFilter(np.ones(4, bool)).of(cache)


def test_copies_keep_what_was_removed(tmp_path: Path):
    cache = tiny_cache(tmp_path / "c", documents=30)
    remove(cache.path, 4, 5)
    output = str(tmp_path / "shuffled")
    for _ in range(2):
        reshuffle(cache.path, output, ReshuffleConfig(seed=3), engine="inline", progress=False)
        assert open_cache(output).removed() == numbers(4, 5)
        assert history_of(output).newest == 2


def test_two_hundred_snapshots_are_one_request(tmp_path: Path):
    root = tiny_cache(tmp_path / "c", documents=900).path
    for number in range(0, 396, 2):
        remove(root, number)
    grow(root, 4)
    with web_server(tmp_path) as url, FaultProxy(url) as proxy:
        cache = open_cache(f"{proxy.url}/c")
        asked = [entry.path.removeprefix("/c/") for entry in proxy.log]
    assert (cache.snapshots[0].number, cache.removed().total) == (200, 198)
    assert asked.count(SNAPSHOTS_NAME) == 1
    assert len(asked) <= 7  # the others are for the ledgers of the two members


def append_often(root: str, times: int) -> None:
    """Appends a cache of two documents so many times."""
    built = TokenCache.open_member(root).as_member
    first = len(history_of(root).members)
    for number in range(first, first + times):
        parts = [[np.arange(number, number + 3, dtype=np.uint16), np.full(4, number, np.uint16)]]
        add_appended(root, built, number, write_cache(member_path(root, number), parts).as_member)


@pytest.mark.parametrize("times", [73, pytest.param(201, marks=pytest.mark.slow)])
def test_hundreds_of_appended_caches_take_few_requests(tmp_path: Path, times: int):
    root = tiny_cache(tmp_path / "c", documents=5).path
    append_often(root, times)
    local = open_cache(root)
    with web_server(tmp_path) as url, FaultProxy(url) as proxy:
        cache = open_cache(f"{proxy.url}/c")
        # The list, three for the built cache, two for each group (one or three of 64, one of 8),
        # and three for the one that was appended last
        assert len(proxy.log) == 1 + 3 + {73: 2, 201: 4}[times] * 2 + 3
        assert cache.opening_requests(1) == len(proxy.log) - 1  # the list is not a cache's
        assert cache.fingerprint == local.fingerprint
        last = range(cache.num_documents - 8, cache.num_documents)
        for document in (0, 7, 77, *last):
            assert cache.document(document).tolist() == local.document(document).tolist()
        earlier = open_cache(f"{proxy.url}/c", 61)  # 60 were appended: 7 x 8 and 4
        assert earlier.fingerprint == open_cache(root, 61).fingerprint
        parts = [one.whole_ledger.parts for one in (cache, local)]
        assert [p.documents for p in parts[0]] == [p.documents for p in parts[1]]


def test_ledgers_in_groups_are_not_needed_and_not_trusted(tmp_path: Path):
    root = tiny_cache(tmp_path / "c", documents=5).path
    append_often(root, 17)
    expected = open_cache(root).fingerprint
    group = Path(group_path(root, range(9, 17)))
    whole = group.read_bytes()
    with web_server(tmp_path) as url, FaultProxy(url) as proxy:
        there = f"{proxy.url}/c"
        group.write_bytes(whole[:-40] + b"A" * 38 + whole[-2:])
        with pytest.raises(CacheCorruptError, match="Delete it") as error:
            open_cache(there)
        assert error.value.field == "ledgers"
        # Ledgers of other members are noticed
        shutil.copy(group_path(root, range(1, 9)), group)
        with pytest.raises(CacheCorruptError, match=r"of another cache|not what was appended"):
            open_cache(there)
        group.unlink()
        assert open_cache(there).fingerprint == expected
        # Arrays of another cache are noticed at the last member of a group
        group.write_bytes(whole)
        data = "parts/00000/input_ids/data"
        shutil.copytree(
            Path(member_path(root, 3), data), Path(member_path(root, 16), data), dirs_exist_ok=True
        )
        with pytest.raises(CacheCorruptError, match="are of another cache"):
            open_cache(there)


def test_an_append_that_was_given_up_leaves_no_ledgers_behind(tmp_path: Path, monkeypatch):
    root = tiny_cache(tmp_path / "c", documents=5).path
    append_often(root, 7)

    def fail(*_: object) -> None:
        raise OSError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr("headrace.store.snapshots.Change", fail)
        with pytest.raises(OSError, match="killed here"):
            append_often(root, 1)
    assert Path(group_path(root, range(1, 9))).exists()
    shutil.rmtree(member_path(root, 8))
    built = TokenCache.open_member(root).as_member
    other = write_cache(member_path(root, 8), [[np.arange(40, dtype=np.uint16)]])
    add_appended(root, built, 8, other.as_member)
    with web_server(tmp_path) as url:
        assert open_cache(f"{url}/c").fingerprint == open_cache(root).fingerprint


@given(st.integers(1, 600), st.integers(0, 600))
def test_groups_of_members_are_those_that_are_written(first: int, more: int):
    groups = groups_of(range(first, first + more))
    assert [number for group in groups for number in group] == list(range(first, first + more))
    for group in groups:
        size = len(group)
        assert size in (1, 8, 64, 512)
        assert (group[-1] % size, (group[0] - 1) % size) == (0, 0)


REMOVER = """
import sys
from headrace.testing.caches import remove
print("begun", flush=True)
for first in range(0, 600, 3):  # what is removed already makes no snapshot
    remove(sys.argv[1], first, first + 2)
"""


@pytest.mark.parametrize(
    "kills", [pytest.param(3, marks=pytest.mark.slow), pytest.param(30, marks=pytest.mark.soak)]
)
def test_killed_removals_leave_the_file_before_or_after_and_go_on(
    tmp_path: Path, kills: int, tree: Tree
):
    cache = tiny_cache(tmp_path / "c", documents=700, parts=4)
    rng = np.random.default_rng(0)
    hits = 0
    before = tree(cache.path)
    steps = [Change(removed=((n, n + 1), (n + 2, n + 3))) for n in range(0, 600, 3)]
    for _ in range(kills):
        child = subprocess.Popen(
            [sys.executable, "-c", REMOVER, cache.path], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        assert child.stdout.readline()
        time.sleep(float(rng.uniform(0, 0.08)))
        hits += child.poll() is None
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        changes = history_of(cache.path, cache.fingerprint).changes
        assert [*changes] == steps[: len(changes)]
        after = tree(cache.path)
        assert {name: after[name] for name in before} == before
    subprocess.run(
        [sys.executable, "-c", REMOVER, cache.path], check=True, stdout=subprocess.DEVNULL
    )
    assert [*history_of(cache.path).changes] == steps
    assert hits >= kills // 2


def test_on_object_stores(root: str, tmp_path: Path):
    cache = tiny_cache(tmp_path / "c", documents=40)
    place, _ = filesystem(root)
    for path in sorted(Path(cache.path).rglob("*")):
        if path.is_file():
            place.pipe_file(f"{root}/{path.relative_to(cache.path)}", path.read_bytes())
    assert history_of(root).newest == 1
    remove(root, 5, 6)
    assert remove(root, 30) == 3
    near, gone = (
        LmDataConfig({"a": ComponentConfig(path)}, seq_len=16, batch_size=8).dataset()
        for path in (cache.path, root)
    )
    mixture = mixture_of(near)
    assert mixture is not None
    rows = np.arange(len(mixture.components[0].caches()[0].lengths()))
    ours = near.read(rows)
    theirs = gone.at_step(0)[0].read(rows)
    changed_rows = (np.asarray(ours.tokens) != np.asarray(theirs.tokens)).any(axis=1)
    assert changed_rows.any()
    assert not changed_rows.all()
    assert np.array_equal(changed_rows, ~(np.asarray(theirs.token_mask) != 0).all(axis=1))


@pytest.mark.parametrize("store", ["gcs_bucket", pytest.param("s3_bucket", marks=pytest.mark.slow)])
def test_caches_in_object_stores_grow(tmp_path: Path, store: str, request: pytest.FixtureRequest):
    root = f"{request.getfixturevalue(store)}/growing"
    for name in ("old", "new"):
        (tmp_path / f"{name}.txt").write_text(f"{name} text")
    quiet: dict[str, Any] = {"progress": False, "engine": "inline"}
    build_cache(SourceConfig([str(tmp_path / "old.txt")]), TokenizerConfig("bytes"), root, **quiet)
    assert append_cache([str(tmp_path / "new.txt")], root, **quiet).parts_built == 1
    cache = open_cache(root)
    assert (cache.snapshots[0].number, cache.num_documents) == (2, 2)
    assert bytes(cache.document(1)[:-1].astype(np.uint8)) == b"new text"
    web = {"web": ComponentConfig(root, snapshot=1)}
    config = LmDataConfig(
        web, seq_len=4, batch_size=2, amendments=[AmendmentConfig(3, caches={"web": 2})]
    )
    assert config.open_caches()["web@2"].num_documents == 1
    assert history_of("elsewhere").newest == 1
