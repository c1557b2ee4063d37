"""Checksums of Levanter's caches: what changes after they were taken is an error that names it."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from typer.testing import CliRunner

from headrace.cli.application import application
from headrace.data import TokenSeqDataset
from headrace.errors import CacheCorruptError, ConfigError, HeadraceError
from headrace.feed import DataLoader
from headrace.store import CacheLayout, open_cache, open_replicas, retry, verify
from headrace.testing import FaultProxy, web_server, write_cache
from headrace_levanter.checksums import PLACE_VARIABLE, RECORD_NAME
from headrace_levanter.export import write_levanter

TOKENS = 600_000  # three chunks of Levanter's
QUICK = retry.RetryPolicy(damaged_attempts=2, first_delay_s=0.001)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A cache in both of Levanter's forms, whose ids the codec cannot compress, and its tokens."""
    folder = tmp_path_factory.mktemp("levanter")
    rng = np.random.default_rng(0)
    parts = [
        [rng.integers(0, 60_000, TOKENS // 100).astype(np.uint16) for _ in range(100)]
        for _ in range(2)
    ]
    cache = write_cache(folder / "own", parts, layout=CacheLayout("uint16"))
    for form in ("consolidated", "sharded"):
        write_levanter(cache, str(folder / form), form=form)
    return folder, np.concatenate([document for part in parts for document in part])


@pytest.fixture(params=["consolidated", "sharded"])
def root(request, written, tmp_path, monkeypatch):
    """A cache without checksums, that a test may damage, in the folder of :func:`web`."""
    monkeypatch.delenv(PLACE_VARIABLE, raising=False)
    return Path(shutil.copytree(written[0] / request.param, tmp_path / request.param))


@pytest.fixture
def web(tmp_path):
    """A folder, and its address on a web server."""
    with web_server(tmp_path) as url:
        yield tmp_path, url


@pytest.fixture
def quick():
    before = retry.use_policy(QUICK)
    yield
    retry.use_policy(before)


def read(url):
    cache = open_cache(url)
    return cache.tokens(0, cache.num_tokens)


def read_or_fail(url):
    try:
        return read(url), None
    except HeadraceError as error:
        return None, error


def flip(file, at):
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << at % 8
    file.write_bytes(content)


def files_of(root):
    return sorted(root.glob("**/input_ids/*/c/0"))


@pytest.mark.parametrize("place", ["local", "http"])
def test_a_flip_is_an_error_or_changes_nothing(root, web, written, quick, place):
    url = str(root) if place == "local" else f"{web[1]}/{root.name}"
    silent = 0
    report = verify(str(root), record=True)
    assert report.recorded == str(root / RECORD_NAME)
    assert (report.damages, report.unchecked) == ([], ())
    for file in files_of(root):
        content = file.read_bytes()
        for at in np.linspace(0, len(content) - 1, 7, dtype=int).tolist():
            flip(file, at)
            values, error = read_or_fail(url)
            if error is None:
                assert np.array_equal(values, written[1])
            else:
                assert str(file.parents[1]).replace(str(root), url) in str(error)
                (root / RECORD_NAME).rename(root / "away")
                values, error = read_or_fail(url)
                silent += error is None and not np.array_equal(values, written[1])
                (root / "away").rename(root / RECORD_NAME)
            file.write_bytes(content)
    assert silent > 0  # without checksums, some of these flips were data
    assert np.array_equal(read(url), written[1])


def test_a_loader_and_documents_read_the_same_with_checksums(root, web, written):
    def batches(url):
        loader = DataLoader(TokenSeqDataset(url, 1024).shuffle(3), 8)
        with loader.iter_from_step(0) as batches:
            return [np.asarray(next(batches).tokens) for _ in range(4)]

    plain = open_cache(str(root))
    documents = {number: plain.document(number) for number in (0, 99, 100, 199)}
    rows = batches(str(root))
    verify(str(root), record=True)
    for url in (str(root), f"{web[1]}/{root.name}"):
        cache = open_cache(url)
        assert all(np.array_equal(cache.document(n), documents[n]) for n in documents)
        assert cache.tokens(7, 7).size == 0
        assert np.array_equal(cache.tokens(262_100, 262_200), written[1][262_100:262_200])
        assert np.array_equal(cache.tokens(TOKENS - 5, TOKENS), written[1][TOKENS - 5 : TOKENS])
        assert all(map(np.array_equal, batches(url), rows))


def test_a_loader_ends_at_a_flip_and_names_the_file(root):
    verify(str(root), record=True)
    (file, *_) = root.glob("**/input_ids/data/c/0")
    flip(file, 1000)
    loader = DataLoader(TokenSeqDataset(str(root), 1024), 64)
    with pytest.raises(HeadraceError) as failure, loader.iter_from_step(0) as batches:
        list(batches)
    assert f"shard file {file}" in failure.value.problem
    with pytest.raises(HeadraceError) as failure:
        open_cache(str(root)).document(0)
    assert "Copy that file again" in str(failure.value.cure)


@pytest.mark.parametrize("lost", [False, True])
def test_verify_names_the_file_that_was_swapped_and_not_its_neighbour(written, tmp_path, lost):
    root = Path(shutil.copytree(written[0] / "sharded", tmp_path / "cache"))
    first, second = sorted(root.glob("*/input_ids/data/c/0"))
    shutil.copy(second, tmp_path / "other")
    assert verify(str(root), record=True).damages == []
    if lost:
        first.rename(second)
        expected = [first, second]
    else:
        shutil.copy(first, second)
        expected = [second]
    damages = verify(str(root), deep=True).damages
    assert sorted({damage.file for damage in damages}) == list(map(str, expected))
    assert {damage.part for damage in damages} == {file.parts[-5] for file in expected}
    shutil.copy(tmp_path / "other", second)
    if not lost:
        assert verify(str(root), deep=True).damages == []


def test_a_swap_of_chunks_in_one_file_is_found(root):
    """Their positions stand in the index: it is in order, and so is every chunk."""
    verify(str(root), record=True)
    (file, *_) = root.glob("**/input_ids/data/c/0")
    content = bytearray(file.read_bytes())
    index = np.frombuffer(content, "<u8", 1024, len(content) - 512 * 16 - 4).reshape(-1, 2).copy()
    index[[0, 1]] = index[[1, 0]]
    content[-512 * 16 - 4 : -4] = index.tobytes()
    content[-4:] = google_crc32c.value(index.tobytes()).to_bytes(4, "little")
    file.write_bytes(content)
    (damage,) = verify(str(root), deep=True).damages
    assert (damage.file, damage.chunks) == (str(file), [[0, 1]])


def test_a_cache_that_cannot_be_written_has_its_checksums_elsewhere(
    root, web, written, tmp_path, quick, monkeypatch
):
    url = f"{web[1]}/{root.name}"
    before = {file: file.stat().st_mtime_ns for file in root.rglob("*")}
    with pytest.raises(ConfigError) as refusal:
        verify(url, record=True)
    command = re.search(
        r"HEADRACE_CHECKSUMS=\S+ headrace cache verify \S+ --record", str(refusal.value)
    )
    variable, *typed = shlex.split(command[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(*variable.split("="))
    done = CliRunner().invoke(application(), typed[1:])
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "checksums").iterdir())) == 1
    assert {file: file.stat().st_mtime_ns for file in root.rglob("*")} == before
    assert np.array_equal(read(url), written[1])
    (file, *_) = root.glob("**/input_ids/data/c/0")
    flip(file, 1000)
    for place in (url, str(root)):  # it is the same cache wherever it lies
        with pytest.raises(HeadraceError):
            read(place)


def test_what_is_damaged_on_its_way_is_asked_for_again(root, web, written, quick):
    verify(str(root), record=True)
    with FaultProxy(web[1]) as proxy:
        cache = open_cache(f"{proxy.url}/{root.name}")
        cache.tokens(0, 1)  # opens the array
        counts = retry.own_counts()
        damaged = counts.damaged
        for _ in range(8):
            cache.leaf("input_ids").parts[0].data.forget()  # else the last chunk is not asked for
            proxy.next("flip", path_contains="input_ids/data/c/0")
            assert np.array_equal(cache.tokens(0, cache.num_tokens), written[1])
        assert counts.damaged > damaged


def test_opening_asks_for_no_file_of_other_formats(root, web):
    with FaultProxy(web[1]) as proxy:
        open_cache(f"{proxy.url}/{root.name}")
        paths = [request.path.rpartition("/")[2] for request in proxy.log]
    assert "shard_ledger.json" in paths
    assert not {"state.json", "dataset_dict.json"} & {*paths}


def test_a_replica_gives_what_is_damaged_at_the_first(root, written, tmp_path):
    copy = shutil.copytree(root, tmp_path / "copy")
    verify(str(root), record=True)
    (file, *_) = root.glob("**/input_ids/data/c/0")
    flip(file, 1000)
    cache = open_replicas([str(root), str(copy)])
    assert np.array_equal(cache.tokens(0, cache.num_tokens), written[1])


def test_checksums_that_are_damaged_or_of_another_cache_are_refused(root, written, tmp_path):
    verify(str(root), record=True)
    record = root / RECORD_NAME
    content = record.read_bytes()
    flip(record, len(content) // 2)
    with pytest.raises(CacheCorruptError) as refusal:
        read(str(root))
    assert (refusal.value.field, refusal.value.value) == ("levanter_checksums", str(record))
    record.write_bytes(content)
    ledger = json.loads((root / "shard_ledger.json").read_bytes())
    other = Path(shutil.copytree(written[0] / "consolidated", tmp_path / "other"))
    other_ledger = json.loads((other / "shard_ledger.json").read_bytes())
    other_ledger["total_num_rows"] = ledger["total_num_rows"] - 1
    (other / "shard_ledger.json").write_text(json.dumps(other_ledger))
    shutil.copy(record, other)
    with pytest.raises(CacheCorruptError, match="is of another cache") as refusal:
        read(str(other))
    os.unlink(refusal.value.value)  # as the cure says
    (command,) = re.findall(r"headrace (cache verify \S+ --record)", str(refusal.value.cure))
    done = CliRunner().invoke(application(), shlex.split(command))
    assert done.exit_code == 0, done.output


def test_nothing_is_recorded_of_a_damaged_cache(root):
    file = next(root.glob("**/input_ids/data/c/0"))
    file.write_bytes(file.read_bytes()[:-100])
    report = verify(str(root), record=True)
    assert (report.recorded, bool(report.damages)) == ("", True)
    assert not (root / RECORD_NAME).exists()


def test_a_relative_path_names_the_same_cache(root, monkeypatch):
    monkeypatch.chdir(root.parent)
    verify(root.name, record=True)
    monkeypatch.chdir(root)
    assert verify(".", deep=True).damages == []
    assert open_cache(str(root)).tokens(0, 9).size == 9


def test_verify_says_how_checksums_are_taken(root):
    (advice,) = verify(str(root), deep=True).unchecked
    (command,) = re.findall(r"headrace (cache verify \S+ --record)", advice)
    done = CliRunner().invoke(application(), shlex.split(command))
    assert done.exit_code == 0, done.output
    assert str(root / RECORD_NAME) in done.output.replace("\n", "")
    assert verify(str(root)).unchecked == ()


def test_a_cache_of_our_own_has_its_checksums(written):
    with pytest.raises(ConfigError) as refusal:
        verify(str(written[0] / "own"), record=True)
    (command,) = re.findall(r"headrace (cache verify \S+ --deep)", str(refusal.value.cure))
    assert CliRunner().invoke(application(), shlex.split(command)).exit_code == 0
