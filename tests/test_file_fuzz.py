"""Every file that is read back, changed at random: it is read, or an error of headrace's comes out,
nothing else.
"""

import contextlib
import hashlib
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import HeadraceError
from headrace.config import load_config
from headrace.data import TokenSeqDataset
from headrace.data.documents import DocumentFilter
from headrace.errors import ConfigError
from headrace.feed import DataLoader
from headrace.ingest.tokenize import recorded_tokenizer
from headrace.pack.plan_file import PlanRequest, read_plan, write_plan
from headrace.pack.spec import PackSpec
from headrace.run import RunLock, open_run
from headrace.store import CacheLayout, TokenCache, open_cache, verify
from headrace.store.ledger import read_ledger
from headrace.store.snapshots import history_of
from headrace.testing import write_cache
from headrace.testing.caches import random_documents, remove
from headrace_posttrain import RolloutStore, ScoredGroup
from headrace_posttrain.rollouts.rollout_records import BatchRecord

HOSTILE = [
    None,
    True,
    -1,
    0,
    1e300,
    float("nan"),
    2**70,
    2**36,
    "",
    "../../x",
    "\u0000",
    [],
    {},
    [[]],
    {"a": None},
    1.5,
]
CONFIG = """
seq_len: 16
batch_size: 4
shuffle: {kind: braid}
components: {a: {cache: A}, b: {cache: B, weight: 0.5}}
"""


def places(node, path=()):
    """Paths of all values within a value of JSON."""
    yield path
    inner = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for key, value in inner:
        yield from places(value, (*path, key))


def changed_value(raw: bytes, pick: np.random.Generator) -> bytes:
    """A value of a JSON file replaced by a hostile one, or deleted, or nested deeply."""
    tree = {"": json.loads(raw)}
    *outer, last = ("", *list(places(tree[""]))[pick.integers(len(list(places(tree[""]))))])
    node = tree
    for key in outer:
        node = node[key]
    how = pick.integers(len(HOSTILE) + 2)
    if how == len(HOSTILE) and last != "":
        del node[last]
    elif how == len(HOSTILE) + 1:
        node[last] = "@"
        return json.dumps(tree[""]).encode().replace(b'"@"', b"[" * 100_000)
    else:
        node[last] = HOSTILE[how % len(HOSTILE)]
    return json.dumps(tree[""]).encode()


def changed_bytes(raw: bytes, pick: np.random.Generator) -> bytes:
    at = int(pick.integers(len(raw) + 1))
    how = pick.integers(4)
    if how == 0:
        return raw[:at]
    if how == 1 and at < len(raw):
        return raw[:at] + bytes([raw[at] ^ (1 << int(pick.integers(8)))]) + raw[at + 1 :]
    if how == 2:
        return raw[:at] + pick.bytes(int(pick.integers(1, 9))) + raw[at:]
    return raw[:at] + raw[at + int(pick.integers(1, 20)) :]


def changed_table(raw: bytes, pick: np.random.Generator) -> bytes:
    """A ledger in columns whose head, or one of its columns, says something else, with digests that
    fit.
    """
    end = 48 + int.from_bytes(raw[8:16], "little")
    head = json.loads(raw[48:end])
    columns = raw[end:]
    if pick.integers(2):
        changed_head = changed_value(raw[48:end], pick)
    else:
        column = head["columns"][pick.integers(head["opened"])]
        values = np.frombuffer(
            pick.bytes(head["parts"] * np.dtype(column["dtype"]).itemsize), np.uint8
        )
        column["digest"] = hashlib.sha256(values).hexdigest()
        changed_head = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
        begin = -(-(48 + len(changed_head)) // 64) * 64
        for other in head["columns"]:
            size = head["parts"] * np.dtype(other["dtype"]).itemsize
            if other is column:
                columns = (
                    raw[end:][: begin - end] + values.tobytes() + raw[end:][begin - end + size :]
                )
                break
            begin = -(-(begin + size) // 64) * 64
    digest = hashlib.sha256(changed_head).digest()
    return raw[:8] + len(changed_head).to_bytes(8, "little") + digest + changed_head + columns


def resealed(raw: bytes, changed_raw: bytes) -> bytes:
    """A changed ledger with the digest that fits, so that what it says is looked at; as it is if it
    is no JSON, or if the digest itself was changed.
    """
    try:
        tree = json.loads(changed_raw)
    except (ValueError, RecursionError):
        return changed_raw
    if not isinstance(tree, dict) or tree.get("digest") != json.loads(raw)["digest"]:
        return changed_raw
    blank = json.dumps({**tree, "digest": ""}, indent=1).encode()
    digest = hashlib.sha256(blank).hexdigest()
    return blank.replace(b'\n "digest": ""', f'\n "digest": "sha256:{digest}"'.encode(), 1)


def changed(raw: bytes, seed: int) -> bytes:
    pick = np.random.default_rng(seed)
    if raw.startswith(b"HRLEDGER") and pick.integers(3):
        return changed_table(raw, pick)
    try:
        json.loads(raw)
    except ValueError:
        return changed_bytes(raw, pick)
    return (changed_value if pick.integers(3) else changed_bytes)(raw, pick)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A cache without digests in its arrays, read from ledger.json and them alone: all that is read
    is looked at.
    """
    root = tmp_path_factory.mktemp("fuzz")
    write_cache(
        root, [random_documents(30, seed=k) for k in range(2)], layout=CacheLayout("uint8", 32, 2)
    )
    for file in root.rglob("zarr.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "attributes": {}}))
    write_cache(
        root / "columns",
        [random_documents(30, seed=k) for k in range(2)],
        layout=CacheLayout("uint8", 32, 2),
    )
    remove(root / "columns", 3, 4, 50)
    (root / "config.yaml").write_text(CONFIG)
    np.save(root / "removed.npy", np.arange(3))
    (root / "removed.json").write_text("[0, 1, 5]")
    (root / "removed.txt").write_text("0\n1\n5\n")
    write_plan(str(root / "plans"), REQUEST, [np.arange(1, 9)])
    open_run(str(root / "run"), loader(root)).state(3)
    with RolloutStore(root / "rollouts") as store:
        store.claim({"seed": 1})
        for position in range(2):
            store.put_group(position, ScoredGroup([np.array([1, 2])], np.zeros(1), 1))
        store.put_record(BatchRecord(0, [0, 1], {2: "late"}, 3))
    earlier = root / "earlier_rollouts"
    (earlier / "batches").mkdir(parents=True)
    (earlier / "run.json").write_text('{"format_version": 1, "seed": 1}')
    (earlier / "batches" / "000000000000.json").write_bytes(
        BatchRecord(0, [0, 1], {2: "late"}, 3).to_json()
    )
    return root


REQUEST = PlanRequest("sha256:0", 8, PackSpec(16))


def loader(root):
    return DataLoader(TokenSeqDataset(of_json(root), 16).shuffle(0), batch_size=8)


def of_json(root):
    """The cache as ledger.json alone tells it; the error of opening it if there is none."""
    ledger = read_ledger(str(root))
    return open_cache(root) if ledger is None else TokenCache(str(root), ledger)


def read_cache(root):
    read_all(of_json(root))


def read_all(cache):
    cache.lengths()
    cache.tokens(0, cache.num_tokens)
    cache.leaf("input_ids").values(0, cache.num_documents)


def read_packs(root):
    plan = read_plan(str(root / "plans"), REQUEST)
    if plan is not None:
        items, _ = plan.of_packs(np.arange(len(plan.bounds) - 1))
        plan.items.document[items]


def read_rollouts(root):
    store = RolloutStore(root / "rollouts")
    store.describe()
    for record in store.records():
        for position in record.positions:
            store.group(position)


def read_earlier_rollouts(root):
    RolloutStore(root / "earlier_rollouts").describe()


def filtered(name):
    return lambda root: DocumentFilter.load(str(root / name)).of(of_json(root))


READERS = {
    "ledger": ("ledger.json", read_cache, lambda root: verify(str(root), deep=True)),
    "table": (
        "columns/ledger.bin",
        lambda root: read_all(open_cache(root / "columns")),
        lambda root: verify(f"{root}/columns"),
    ),
    "record": ("parts/00000/part.json", lambda root: verify(str(root))),
    "array": (
        "parts/00001/input_ids/data/zarr.json",
        read_cache,
        lambda root: verify(str(root), deep=True),
    ),
    "offsets": (
        "parts/00001/input_ids/offsets/zarr.json",
        read_cache,
        lambda root: verify(str(root), deep=True),
    ),
    "shard": (
        "parts/00001/input_ids/data/c/0",
        read_cache,
        lambda root: verify(str(root), deep=True),
    ),
    "snapshots": ("columns/snapshots.json", lambda root: history_of(f"{root}/columns")),
    "plan": ("plans/*/plan.json", read_packs),
    "vector": ("plans/*/*.bin", read_packs),
    "lock": ("run/*lock*.json", lambda root: RunLock.load(str(root / "run"))),
    "run": ("run/*lock*.json", lambda root: open_run(str(root / "run"), loader(root))),
    "anchors": ("run/*anchors*", lambda root: open_run(str(root / "run"), loader(root), 3)),
    "rollouts": ("rollouts/**/*.log", read_rollouts),
    "claim": ("earlier_rollouts/run.json", read_earlier_rollouts),
    "steps": ("earlier_rollouts/batches/*", read_earlier_rollouts),
    "filter": ("removed.npy", filtered("removed.npy")),
    "list": ("removed.json", filtered("removed.json")),
    "lines": ("removed.txt", filtered("removed.txt")),
    "config": ("config.yaml", lambda root: load_config(str(root / "config.yaml"))),
}


SMALL = int(os.environ.get("HEADRACE_FUZZ_EXAMPLES", "0")) <= 300
"""A small budget draws the same each time, so that what it finds is the change's; a larger one
draws anew.
"""


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", READERS)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=SMALL,
)
@given(seed=st.integers(0, 2**32))
def test_only_errors_of_headrace_come_out(root: Path, kind: str, seed: int):
    pattern, *readers = READERS[kind]
    for file in root.glob(pattern):
        raw = file.read_bytes()
        try:
            content = changed(raw, seed)
            file.write_bytes(resealed(raw, content) if kind == "ledger" else content)
            for read in readers:
                with contextlib.suppress(HeadraceError):
                    read(root)
        finally:
            file.write_bytes(raw)


@pytest.mark.fuzz
@given(seed=st.integers(0, 2**32))
def test_tokenizers_too(tmp_path_factory, seed):
    folder = tmp_path_factory.mktemp("tokenizer")
    model = {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"}
    content = json.dumps(
        {"version": "1.0", "added_tokens": [], "normalizer": None, "model": model}
    ).encode()
    (folder / "tokenizer.json").write_bytes(changed(content, seed))
    record = {
        "file": "tokenizer.json",
        "path": "t",
        "bos": None,
        "eos": None,
        "fingerprint": "sha256:0",
    }
    with pytest.raises(HeadraceError):
        recorded_tokenizer(str(folder), record)


def test_caches_and_datasets_travel(tmp_path):
    cache = write_cache(
        tmp_path, [random_documents(30, seed=1)], layout=CacheLayout("uint8", 32, 2)
    )
    there = pickle.loads(pickle.dumps(cache))
    assert np.array_equal(there.tokens(0, cache.num_tokens), cache.tokens(0, cache.num_tokens))
    data = TokenSeqDataset(cache, 16).shuffle(0)
    copy = pickle.loads(pickle.dumps(data))
    batches = zip(DataLoader(data, batch_size=8), DataLoader(copy, batch_size=8), strict=True)
    assert all(np.array_equal(a.tokens, b.tokens) for a, b in batches)
    with pytest.raises(ConfigError, match="cannot be pickled: it holds devices and threads"):
        pickle.dumps(DataLoader(data, batch_size=8))
