"""Generations of a cache: one list, written whole, and caches below that are read as one."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import ComponentConfig, LmDataConfig
from headrace.data.documents import DocumentFilter
from headrace.errors import CacheError, CacheMissingError, ConfigError
from headrace.ingest import SourceConfig, TokenizerConfig, append_cache, build_cache
from headrace.mix import AmendmentConfig
from headrace.store import TokenCache, open_cache
from headrace.store.generations import (
    GENERATIONS_NAME,
    add_generation,
    generation_path,
    generations_of,
    generations_problem,
    remove_generations,
)
from headrace.store.joined import open_components
from headrace.store.lease import lease, owning
from headrace.testing import random_documents, tiny_cache, write_cache


def append(root: str, documents: int, seed: int = 5) -> TokenCache:
    number = len(generations_of(TokenCache.open(root))) + 1
    made = write_cache(
        generation_path(root, number), [random_documents(documents, seed=seed + number)]
    )
    add_generation(TokenCache.open(root), number, made)
    return made


def test_a_generation_whose_folder_is_gone_is_to_be_restored(tmp_path: Path):
    root = tiny_cache(tmp_path / "web").path
    shutil.rmtree(append(root, 3).path)
    with pytest.raises(CacheMissingError, match=r"Restore its folder.*generations: 1"):
        open_cache(root)
    assert open_cache(root, 1).num_documents


@settings(max_examples=6)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), wanted=st.integers(1, 4))
def test_generations_read_as_one(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], wanted: int
):
    root = str(tmp_path_factory.mktemp("grown") / "web")
    made = [tiny_cache(root, documents=sizes[0])]
    made += [append(root, documents) for documents in sizes[1:]]
    if wanted > len(sizes):
        with pytest.raises(
            ConfigError,
            match=f"generations = {wanted}: is more than there are: {root} has {len(sizes)}",
        ):
            open_cache(root, wanted)
        wanted = len(sizes)
    cache = open_cache(root, wanted)
    assert (cache.generations, len(cache.members)) == ((wanted,), wanted)
    assert cache.lengths().tolist() == [n for one in made[:wanted] for n in one.lengths().tolist()]
    assert np.array_equal(
        cache.tokens(0, cache.num_tokens),
        np.concatenate([m.tokens(0, m.num_tokens) for m in made[:wanted]]),
    )
    assert generations_problem(root) == (len(sizes), "")


def test_a_component_of_several_caches_has_generations_of_each(tmp_path: Path):
    a = str(tmp_path / "a")
    b = str(tmp_path / "b")
    tiny_cache(a, documents=3, seed=1)
    tiny_cache(b, documents=4, seed=2)
    append(a, 5)
    paths = {"both": [a, b], "a": [a]}
    opened = open_components(paths)
    assert (opened["both"].generations, opened["both"].num_documents) == ((2, 1), 12)
    assert open_components(paths, generations={"both": [1, None]})["both"].num_documents == 7
    with pytest.raises(
        ConfigError, match=r"components\.both\.generations = 2: is more than there are"
    ):
        open_components(paths, generations={"both": [1, 2]})
    copy = shutil.copytree(a, tmp_path / "copy")
    shutil.rmtree(f"{a}/generations/2/parts")
    replicated = open_components({"a": [a]}, replicas={"a": [], a: [str(copy)]})["a"]
    assert np.array_equal(replicated.document(7), open_cache(str(copy)).document(7))


def test_of_two_appends_one_wins(tmp_path: Path):
    root = str(tmp_path / "web")
    cache = tiny_cache(root, documents=3)
    first = append(root, 5)
    add_generation(cache, 2, first)  # a second time: nothing
    other = tiny_cache(tmp_path / "other", documents=9)
    with pytest.raises(
        CacheError, match="has 2 generations by now, and this one was to be number 2"
    ):
        add_generation(cache, 2, other)
    with pytest.raises(CacheError, match="has 2 generations by now"):
        add_generation(cache, 4, other)
    with lease(root), pytest.raises(CacheError, match="is being written by"):
        add_generation(cache, 3, other)
    assert open_cache(root).num_documents == 8


def test_readers_see_the_list_before_or_behind(tmp_path: Path):
    root = str(tmp_path / "web")
    tiny_cache(root, documents=3)
    seen: set[int] = set()
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.add(open_cache(root).num_documents)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(5):
        append(root, 2)
    over.set()
    reader.join()
    assert seen <= {3, 5, 7, 9, 11, 13}


def test_problems_are_found(tmp_path: Path):
    root = str(tmp_path / "web")
    tiny_cache(root, documents=3)
    append(root, 2)
    append(root, 4)
    shutil.rmtree(generation_path(root, 3))
    number, problem = generations_problem(root)
    assert number == 2
    assert problem.startswith("names generation 3, which is not a token cache")
    Path(root, GENERATIONS_NAME).write_text("{")
    assert generations_problem(root)[1].startswith(
        "is damaged, so that it is not known what was appended"
    )
    with owning(root):
        remove_generations(root)
    assert generations_problem(root) == (1, "")
    assert generations_problem(str(tmp_path / "nothing")) == (1, "")


def test_lists_of_documents_hold_through_generations(tmp_path: Path):
    root = str(tmp_path / "web")
    first = tiny_cache(root, documents=3)
    append(root, 4)
    cache = open_cache(root)
    (tmp_path / "list.txt").write_text(f"# cache: {first.fingerprint}\n2\n5\n")
    assert DocumentFilter.load(str(tmp_path / "list.txt")).of(cache).documents.total == 2
    assert DocumentFilter(np.array([True, False, True])).of(cache).documents.total == 2
    with pytest.raises(ConfigError, match="is a bitmap of 4 documents, but the cache has 7"):
        DocumentFilter(np.ones(4, bool)).of(cache)


@pytest.mark.parametrize("store", ["gcs_bucket", pytest.param("s3_bucket", marks=pytest.mark.slow)])
def test_caches_in_object_stores_grow(tmp_path: Path, store: str, request: pytest.FixtureRequest):
    root = f"{request.getfixturevalue(store)}/growing"
    for name in ("old", "new"):
        (tmp_path / f"{name}.txt").write_text(f"{name} text")
    quiet: dict[str, Any] = {"progress": False, "engine": "inline"}
    build_cache(SourceConfig([str(tmp_path / "old.txt")]), TokenizerConfig("bytes"), root, **quiet)
    assert append_cache([str(tmp_path / "new.txt")], root, **quiet).parts_built == 1
    cache = open_cache(root)
    assert (cache.generations, cache.num_documents) == ((2,), 2)
    assert bytes(cache.document(1)[:-1].astype(np.uint8)) == b"new text"
    web = {"web": ComponentConfig(root, generations=1)}
    config = LmDataConfig(
        web, seq_len=4, batch_size=2, amendments=[AmendmentConfig(3, extend={"web": 2})]
    )
    assert config.open_caches()["web@2"].num_documents == 1
