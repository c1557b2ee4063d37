"""Builds from and to object stores that fail for a while: they get through, or end with an error
and are continued.
"""

import gzip
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import CacheError, CacheUnfinishedError
from headrace.ingest import SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.build import BuildReport
from headrace.store import files, open_cache, retry
from headrace.store.remote import filesystem
from headrace.testing import Faults

EVERY = ("GET", "HEAD", "PUT", "POST", "DELETE")
FILES = 4
DOCUMENTS = 60
SETTINGS: dict[str, Any] = {
    "part_bytes": 1,
    "chunk_tokens": 512,
    "shard_chunks": 4,
    "progress": False,
}


@pytest.fixture(autouse=True)
def policy() -> Iterator[None]:
    before = retry.use_policy(
        retry.RetryPolicy(first_delay_s=0.02, max_delay_s=0.2, timeout_s=300.0)
    )
    yield
    retry.use_policy(before)


@pytest.fixture
def engine(remote: Any) -> str:
    """Workers for the one, this process for the other."""
    return "pool" if remote.root.startswith("gs") else "inline"


@pytest.fixture
def source(remote: Any) -> SourceConfig:
    """Files on the store, each a part: they are packed, so they are not cut."""
    folder = files.join(remote.root, "src")
    for i in range(FILES):
        lines = "".join(
            json.dumps({"text": f"file {i} line {j} " * (j % 9)}) + "\n" for j in range(DOCUMENTS)
        )
        files.write_atomic(
            files.join(folder, f"{i}.jsonl.gz"), gzip.compress(lines.encode(), mtime=0)
        )
    return SourceConfig([folder])


def build(source: SourceConfig, remote: Any, name: str, engine: Any = "inline") -> BuildReport:
    return build_cache(
        source,
        TokenizerConfig(),
        files.join(remote.root, name),
        engine=engine,
        workers=2,
        **SETTINGS,
    )


def most_attempts(remote: Any) -> int:
    """Of the requests that failed: how often the one was asked that was asked most often."""
    failed = Counter(
        (r.method, r.path.partition("?")[0]) for r in remote.proxy.log if r.fate == "error"
    )
    return max(failed.values())


def stored(remote: Any, name: str) -> dict[str, bytes]:
    """All files of a cache there."""
    fs, path = filesystem(files.join(remote.root, name))
    return {found.removeprefix(path): fs.cat_file(found) for found in fs.find(path)}


def test_an_outage_in_the_middle_is_waited_for(remote: Any, source: SourceConfig, engine: str):
    """From the first part on everything gets 503, five times over."""
    faults = Faults(error_rate=1.0, error_status=(503,), methods=EVERY, path_contains="input_ids")
    ended = threading.Event()

    def outage() -> None:
        while remote.proxy.count(fate="error") < 5 and not ended.is_set():
            time.sleep(0.005)
        remote.proxy.faults = Faults()

    remote.proxy.clear()
    remote.proxy.faults = (
        faults  # before the build: a thread that has to see its first request can be late
    )
    thread = threading.Thread(target=outage)
    thread.start()
    report = build(source, remote, "c", engine)
    ended.set()
    thread.join()
    log = len(remote.proxy.log)
    failed = remote.proxy.count(fate="error")
    assert failed > 0
    unseen = report.requests - log  # those whose connection broke before the proxy had read them
    assert report.failed_requests - failed == unseen >= 0
    undisturbed = build(source, remote, "d")
    assert undisturbed.failed_requests == 0
    assert 0 < undisturbed.requests < report.requests
    assert stored(remote, "c") == stored(remote, "d")
    assert (
        build(source, remote, "d").requests < undisturbed.requests / 2
    )  # finished: nothing is written


def test_one_answer_in_ten_is_503(remote: Any, source: SourceConfig):
    remote.proxy.clear()
    remote.proxy.faults = Faults(
        error_rate=0.1, error_status=(503,), methods=EVERY, path_contains="input_ids"
    )
    report = build(source, remote, "c")
    assert (report.requests, report.failed_requests) == (
        len(remote.proxy.log),
        remote.proxy.count(fate="error"),
    )
    remote.proxy.faults = Faults()
    build(source, remote, "d")
    assert stored(remote, "c") == stored(remote, "d")


def test_an_outage_that_lasts_is_an_error_and_the_same_command_goes_on(
    remote: Any, source: SourceConfig, engine: str
):
    """The policy goes to the workers, else they would wait for a minute."""
    retry.use_policy(replace(retry.policy(), deadline_s=0.1))
    arrays = "00002%2Finput_ids" if remote.root.startswith("gs") else "00002/input_ids"
    remote.proxy.faults = Faults(
        error_rate=1.0, error_status=(503,), methods=EVERY, path_contains=arrays
    )
    with pytest.raises(
        CacheError,
        match=r"00002.* cannot be written .*HTTP status 503.* run the same command again",
    ):
        build(source, remote, "c", engine)
    # waits of at least .02, .04 and .08 s, in each of two layers
    assert most_attempts(remote) <= 8
    with pytest.raises(CacheUnfinishedError, match="the same command again"):
        open_cache(files.join(remote.root, "c"))
    remote.proxy.faults = Faults()
    resumed = build(source, remote, "c", engine)
    assert (resumed.parts_built + resumed.parts_reused, resumed.documents) == (
        FILES,
        FILES * DOCUMENTS,
    )
    assert resumed.parts_reused >= 1
    build(source, remote, "d")
    assert stored(remote, "c") == stored(remote, "d")


def test_two_builders_of_one_cache_there(remote: Any, source: SourceConfig):
    """The second is told who is at work, and touches nothing; of two at once one at most is
    refused.
    """
    results: list[BuildReport | Exception] = []

    def one() -> None:
        try:
            results.append(build(source, remote, "c"))
        except CacheError as error:
            results.append(error)

    remote.proxy.faults = Faults(latency_s=0.02)
    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    remote.proxy.faults = Faults()
    refused = [r for r in results if isinstance(r, CacheError)]
    assert len(refused) <= 1
    assert all("is being written by process" in str(e) for e in refused)
    assert max(r.parts_built for r in results if isinstance(r, BuildReport)) == FILES
    build(source, remote, "d")
    assert stored(remote, "c") == stored(remote, "d")
