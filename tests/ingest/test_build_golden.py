"""What a build makes of a fixed corpus of each kind, pinned: the same in every release, or
``INGEST_VERSION`` changes.

``HEADRACE_UPDATE_GOLDEN=1`` writes the pins anew.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.ingest import ChatConfig, LeafConfig, SourceConfig, TokenizerConfig, build_cache
from headrace.ingest.build import INGEST_VERSION
from headrace.store import open_cache

GOLDEN = Path(__file__).parents[1] / "golden" / "caches.json"
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}{{"
    " m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
MESSAGES = [
    {"role": "user", "content": "Warum? 日本"},
    {"role": "assistant", "content": "Deshalb."},
]
RECORDS: dict[str, list[dict[str, Any]]] = {
    "text": [
        {"text": f"line {i} Ünïcode\n" * (i % 5), "id": f"doc-{i}", "score": i / 4}
        for i in range(60)
    ],
    "tokens": [
        {"input_ids": list(range(i % 7)), "id": f"doc-{i}", "score": 0.5} for i in range(60)
    ],
    "chat": [
        {"messages": MESSAGES * (1 + i % 3), "id": f"doc-{i}", "score": 0.0} for i in range(20)
    ],
    "preference": [
        {"prompt": "2+2=", "chosen": "4", "rejected": "5" * i, "id": f"p{i}", "score": 1}
        for i in range(9)
    ],
    "prompts": [{"prompt": "x" * i, "id": f"q{i}", "score": -1.5} for i in range(9)],
}


def pinned(kind: Any, folder: Path) -> dict[str, Any]:
    """The fingerprint of a cache and, of each of its files but the ledgers, the
    hash of its bytes.
    """
    for i in range(2):
        lines = "".join(json.dumps(r) + "\n" for r in RECORDS[kind])
        (folder / f"{i}.jsonl").write_text(lines)
    leaves = {"id": LeafConfig("id"), "score": LeafConfig("score", "float32")}
    source = SourceConfig([str(folder)], kind=kind, leaves=leaves, chat=ChatConfig(TEMPLATE))
    root = folder / "cache"
    build_cache(
        source,
        TokenizerConfig(),
        str(root),
        part_bytes=1500,
        chunk_tokens=64,
        shard_chunks=4,
        progress=False,
    )
    files = {
        str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest()[:16]
        for p in sorted(root.rglob("*"))
        if p.is_file() and p.name not in ("ledger.json", "ledger.bin", "zarr.json")
    }
    cache = open_cache(root)
    whole = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    return {
        "tokens": cache.num_tokens,
        "parts": len(cache.parts),
        "fingerprint": cache.fingerprint,
        "files": whole,
    }


@pytest.mark.parametrize("kind", RECORDS)
def test_the_cache_is_that_of_the_last_release(kind: str, tmp_path: Path):
    found = pinned(kind, tmp_path)
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("HEADRACE_UPDATE_GOLDEN"):
        golden = {**golden, "ingest_version": INGEST_VERSION, kind: found}
        GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")
    assert golden["ingest_version"] == INGEST_VERSION
    assert found == golden[kind]
