"""Put questions to the search of the built docs, and check that the right page is among the first
three.

    mkdocs build -d SITE && python3 scripts/docs_search.py SITE

Reads ``SITE/search/search_index.json`` and ranks its sections as the site's search does in the
browser: BM25 over titles and texts, with titles and the boost of a page counted as its worker
counts them. Exit status 1 if a page is not found.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

QUESTIONS = {
    "resume a run after a kill": ("quickstart/", "failures/"),
    "take a document down": ("how_to/", "caches/"),
    "held-out rows for evaluation": ("order/", "how_to/"),
    "use my own tokenizer": ("how_to/",),
    "add a source during a run": ("how_to/", "mixing/"),
    "S3 endpoint of my own server": ("object_stores/", "how_to/"),
    "torch": ("coming_from/",),
    "how much memory does the shuffle need": ("order/", "how_to/"),
    "a host died": ("multi_host/", "failures/", "how_to/"),
    "see what the model saw": ("how_to/", "cli/"),
    "Megatron's files": ("coming_from/megatron/",),
    "skip batches of a loss spike": ("how_to/",),
    "pack documents into rows": ("packing/",),
    "weights that change with the step": ("mixing/",),
}
"""Question -> the pages that answer it."""
FIRST = 3
TITLE = 1000.0  # the weight of a title in the site's search
K1 = 1.2
B = 0.75
COMMON = (
    "a an and are as at be by do does for from how i in into is it my of on or that the to what"
)
STOP = {*COMMON.split(), "with"}


def words(text: str) -> list[str]:
    """The words of a text without markup, in a form that drops endings.

    Example:
        >>> words("<p>Sources of batches</p>")
        ['source', 'batch']
    """
    plain = re.sub(r"<[^>]*>", " ", text).lower()
    content = [word for word in re.findall(r"[a-z0-9]+", plain) if word not in STOP]
    return [re.sub(r"(?<=\w{3})(ing|ed|es|s)$", "", word) for word in content]


def ranked(sections: list[dict[str, Any]], question: str) -> list[str]:
    """The pages of the site, best first."""
    fields = [(Counter(words(one["title"])), Counter(words(one["text"]))) for one in sections]
    question_words = set(words(question))
    scores = [0.0] * len(sections)
    for field, weight in ((0, TITLE), (1, 1.0)):
        counts = [both[field] for both in fields]
        mean = sum(sum(one.values()) for one in counts) / len(counts)
        for word in question_words:
            having = sum(word in one for one in counts)
            rarity = math.log(1 + (len(counts) - having + 0.5) / (having + 0.5))
            for number, one in enumerate(counts):
                length = 1 - B + B * sum(one.values()) / mean
                share = one[word] * (K1 + 1) / (one[word] + K1 * length)
                scores[number] += weight * rarity * share
    best: dict[str, float] = {}
    for section, score in zip(sections, scores, strict=True):
        page = section["location"].partition("#")[0]
        best[page] = max(best.get(page, 0.0), score * section.get("boost", 1))
    return sorted(best, key=lambda page: -best[page])


def main() -> int:
    """Asks all questions, and prints what comes first."""
    index = json.loads(Path(sys.argv[1], "search", "search_index.json").read_text())
    missed = 0
    for question, right in QUESTIONS.items():
        first = ranked(index["docs"], question)[:FIRST]
        is_found = any(page in right for page in first)
        missed += not is_found
        print(f"{'ok  ' if is_found else 'MISS'} {question}: {', '.join(first)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
