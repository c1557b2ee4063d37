"""What a user counts are documents, however a store holds them: shuffled, cut, packed, in groups,
moved to other groups.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from headrace import load_config
from headrace.data.document_numbers import DocumentNumbers
from headrace.store import CacheLayout, TokenCache, open_cache
from headrace.store.layout import LeafSpec
from headrace.testing import write_cache

DOCUMENTS = 300
FILTERED = (
    *("listed_documents", "repeated_documents", "not_found_documents"),
    *("removed_documents", "removed_tokens"),
)
ROW = 32
STORES: dict[str, list[list[str]]] = {
    "shuffled": [[]],
    "cut": [["--split", "16"]],
    "packs": [["--pack", f"{ROW}"]],
    "groups": [["--by", "old.npy"]],
    "cut groups": [["--by", "old.npy", "--split", "16"]],
    "moved": [["--by", "old.npy"], ["--by", "new.npy", "--update"]],
}
CONDITIONS = ("length < 30", "score > 2 and rank >= 60", "mark == 1 and length >= 16 and id != 0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Document k has the tokens k, the id k, and a score that follows from k."""
    root = tmp_path_factory.mktemp("documents")
    lengths = np.random.default_rng(0).integers(1, 90, DOCUMENTS)
    values = {
        LeafSpec("id", "int64", "fixed"): lambda tokens: tokens[:1].astype(np.int64),
        LeafSpec("score", "float32", "fixed"): lambda tokens: (tokens[:1] % 5).astype(np.float32),
    }
    documents = [np.full(length, k) for k, length in enumerate(lengths.tolist())]
    halves = [documents[:140], documents[140:]]
    layout = CacheLayout("uint16", 64, 4)
    write_cache(root / "plain", halves, vocab_size=DOCUMENTS, layout=layout, leaves=values)
    rows = [json.dumps({"id": k, "rank": k % 100}) for k in range(DOCUMENTS)]
    (root / "rank.jsonl").write_text("\n".join(rows[::-1]))
    rows = [json.dumps({"document": k, "mark": k % 2}) for k in range(DOCUMENTS)]
    (root / "mark.jsonl").write_text("\n".join(rows))
    np.save(root / "old.npy", np.arange(DOCUMENTS) % 3)
    np.save(root / "new.npy", np.arange(DOCUMENTS) // 7 % 3)
    return root


@pytest.fixture
def written(folder, request, headrace, monkeypatch) -> TokenCache:
    monkeypatch.chdir(folder)
    name = request.param.replace(" ", "-")
    for options in [] if Path(name).exists() else STORES[request.param]:
        assert headrace("cache", "reshuffle", "plain", name, *options).code == 0
    return open_cache(name)


every_store = pytest.mark.parametrize("written", STORES, indirect=True)


def overrides(cache: TokenCache, where: str) -> list[str]:
    attributes = "attributes: {rank: rank.jsonl, mark: {files: mark.jsonl, key: document}}"
    packing = ", packing: {}" if cache.pack is not None else ""
    web = f"components.web={{cache: {cache.path}, where: {where}, {attributes}{packing}}}"
    return [f"seq_len={ROW}", "batch_size=8", "num_steps=4", "split_documents=true", web]


def account(headrace, cache: TokenCache, where: str) -> dict[str, int]:
    Path("run.yaml").write_text("seq_len: 32\n")
    done = headrace("run", "tree", "run.yaml", *overrides(cache, where), "--json")
    assert done.code == 0, done
    (source,) = json.loads(done.out)["sources"].values()
    assert source["cache"]["documents"] == source["account"]["documents"]
    return source["account"]


@every_store
@pytest.mark.parametrize("where", CONDITIONS)
def test_conditions_leave_out_the_same_documents_of_every_store(written, where, headrace):
    plain = account(headrace, open_cache("plain"), where)
    stored = account(headrace, written, where)
    for name in ("documents", "tokens", "removed_documents", "removed_tokens"):
        assert stored[name] == plain[name]
    assert stored["dropped_tokens"] >= 0
    assert plain["removed_documents"] > 0

    def trained_on(cache):
        (rows,) = load_config(overrides=overrides(cache, where)).datasets().values()
        return np.unique(rows.read(np.arange(len(rows))).tokens)

    missing = np.setxor1d(trained_on(open_cache("plain")), trained_on(written))
    assert missing.size <= 0.1 * DOCUMENTS  # what fills no row; zeros for what is left out


@every_store
@pytest.mark.parametrize("name", ["rank", "mark"])
def test_missing_values_are_counted_in_documents(written, name, headrace):
    lines = Path(f"{name}.jsonl").read_text().splitlines()
    Path("some.jsonl").write_text("\n".join(lines[:-9]))
    key = "id" if name == "rank" else "document"
    option = f"{name}=some.jsonl,key={key}"
    done = headrace(
        "cache", "inspect", written.path, "--samples", "0", "--attributes", option, "--json"
    )
    (facts,) = json.loads(done.out)["attributes"]
    assert (facts["documents"], facts["missing"]) == (DOCUMENTS, 9)
    assert sum(count for _, count in facts["values"]) in (0, DOCUMENTS - 9)
    config = overrides(written, f"{name} >= 0")
    config[-1] = config[-1].replace(f"{name}.jsonl", "some.jsonl")
    with pytest.raises(Exception, match=f"9 of {DOCUMENTS} documents have no value"):
        load_config(overrides=config).dataset()


@every_store
def test_length_is_that_of_the_document(written):
    lengths = np.concatenate([*DocumentNumbers(written).chunks("length", "by")])
    assert (written.by_number(lengths) == open_cache("plain").lengths()).all()


@every_store
def test_lists_are_counted_in_documents(written, headrace):
    Path("out.txt").write_text("\n".join(map(str, range(0, 90, 3))))
    counts: list[dict[str, int]] = []
    for path in ("plain", written.path):
        packing = "{}" if open_cache(path).pack is not None else "null"
        component = f"{{cache: {path}, remove: out.txt, packing: {packing}}}"
        Path("removing.yaml").write_text(
            f"{{seq_len: {ROW}, num_steps: 9, components: {{a: {component}}}}}"
        )
        tree = json.loads(headrace("run", "tree", "removing.yaml", "--json").out)
        account = tree["sources"]["a"]["account"]
        counts.append({name: account[name] for name in FILTERED})
    assert counts[0] == counts[1]
    assert counts[0]["removed_documents"]
