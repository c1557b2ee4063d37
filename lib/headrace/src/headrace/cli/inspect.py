"""``headrace inspect``: what is in a token cache; of an unfinished one how far it got and how to finish it."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from headrace.cli.inspect_run import SUFFIXES, inspect_run, removal_line

if TYPE_CHECKING:
    import numpy as np

    from headrace.ingest.tokenize import Tokenizer
    from headrace.store.cache import TokenCache
    from headrace.store.ledger import Ledger

_MAX_LENGTHS = 1 << 22
_WINDOWS = 64
_BAR = 32
_HEAD_IDS, _TAIL_IDS = 240, 40


def command(
    cache: Annotated[str, typer.Argument(help="Folder or URL of a cache, or a config.", metavar="CACHE|RUN.yaml")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Settings over the config.", metavar="[NAME=VALUE]...")
    ] = None,
    samples: Annotated[int, typer.Option(help="Documents to show, drawn at random.", min=0)] = 3,
    document: Annotated[int | None, typer.Option(help="Show just this document, whole.", metavar="I")] = None,
    seed: Annotated[int, typer.Option(help="Which documents are drawn.")] = 0,
    remove: Annotated[
        str | None, typer.Option(help="Filter file: count what it would leave out.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Show what is in a token cache: size, lengths, decoded samples. Of a config: where its tokens go.

    For example:

        headrace inspect cache

        headrace inspect gs://bucket/cache --samples 0 --json

        headrace inspect cache --document 17

        headrace inspect cache --remove duplicates.txt

        headrace inspect run.yaml seq_len=4096
    """
    if cache.endswith(SUFFIXES):
        inspect_run(cache, settings or [], as_json)
        return
    from headrace.errors import ConfigError
    from headrace.store.cache import TokenCache
    from headrace.store.ledger import read_ledger

    console = Console(highlight=False, soft_wrap=False)
    ledger = read_ledger(cache)
    if ledger is not None and not ledger.finished:
        state = unfinished(cache, ledger)
        typer.echo(json.dumps(state)) if as_json else _show_unfinished(console, state)
        return
    opened = TokenCache.open(cache)
    tokenizer = _tokenizer(cache, opened.ledger)
    if document is not None:
        if not 0 <= document < opened.num_documents:
            raise ConfigError(
                f"there is no such document in {cache}",
                field="--document",
                value=document,
                cure=f"Their numbers run from 0 to {opened.num_documents - 1}.",
            )
        shown = [sample(opened, tokenizer, document, whole=True)]
    else:
        shown = [sample(opened, tokenizer, i) for i in drawn(opened.num_documents, samples, seed)]
    if as_json:
        facts = {} if document is not None else {**overview(opened), "lengths": asdict(length_statistics(opened))}
        facts |= {} if remove is None else {"removal": removal(opened, remove)}
        typer.echo(json.dumps({**facts, "samples": [asdict(s) for s in shown]}, ensure_ascii=False))
        return
    if document is None:
        _show_overview(console, overview(opened))
        _show_lengths(console, length_statistics(opened))
    if remove is not None:
        console.print(Text(removal_line(removal(opened, remove))), soft_wrap=True)
    for one in shown:
        _show_sample(console, one)


def removal(cache: TokenCache, url: str) -> dict[str, int]:
    """What a filter file would leave out of a cache, counted; numbers that no document has are counted too."""
    from headrace.data.document_filter import DocumentFilter

    found = DocumentFilter.load(url, name="--remove", count_not_found=True).of(cache)
    return {
        "listed_documents": found.listed,
        "repeated_documents": found.repeated,
        "not_found_documents": found.not_found,
        "removed_documents": found.documents.total,
        "removed_tokens": found.tokens.total,
    }


def overview(cache: TokenCache) -> dict[str, Any]:
    """Sizes, layout, tokenizer and counters of a finished cache, as JSON values."""
    from headrace.store import files

    ledger = cache.ledger
    extra = [p.extra for p in ledger.parts]
    return {
        "path": cache.path,
        "finished": True,
        "documents": cache.num_documents,
        "tokens": cache.num_tokens,
        "bytes_on_disk": files.tree_bytes(cache.path),
        "text_bytes": sum(int(e.get("text_bytes", 0)) for e in extra),
        "empty_documents": sum(int(e.get("empty_documents", 0)) for e in extra),
        "skipped_lines": sum(int(e.get("skipped_lines", 0)) for e in extra),
        "parts": len(ledger.parts),
        "source_files": len(ledger.sources),
        "source_bytes": sum(int(s.get("size") or 0) for s in ledger.sources),
        "layout": ledger.layout,
        "tokenizer": ledger.tokenizer,
        "fingerprint": cache.fingerprint,
    }


@dataclass(frozen=True)
class LengthStatistics:
    """How long documents are, in tokens.

    Attributes:
        documents: Documents that were looked at.
        of: Documents in the cache; if more, a sample was: evenly spaced runs.
        mean: Tokens in a document on average.
        quantiles: Name (``min``, ``p5``, ... ``max``) to tokens.
        histogram: First length, last length, documents, tokens; for each power of two, empty ends left out.
    """

    documents: int
    of: int
    mean: float
    quantiles: dict[str, int]
    histogram: list[tuple[int, int, int, int]]


def length_statistics(cache: TokenCache) -> LengthStatistics:
    """Lengths of all documents, or of a sample of some millions of them; reads offsets, no tokens."""
    import numpy as np

    n = cache.num_documents
    if n <= _MAX_LENGTHS:
        lengths = cache.lengths()
    else:
        size = _MAX_LENGTHS // _WINDOWS
        starts = np.linspace(0, n - size, _WINDOWS).astype(np.int64).tolist()
        lengths = np.concatenate([cache.lengths(s, s + size) for s in starts])
    names = {"min": 0.0, "p5": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "max": 1.0}
    values = np.quantile(lengths, list(names.values()), method="lower").astype(int).tolist()
    return LengthStatistics(
        int(lengths.size), n, float(lengths.mean()), dict(zip(names, values, strict=True)), histogram(lengths)
    )


def histogram(lengths: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Documents and tokens by power of two of the length.

    Args:
        lengths: int64 ``[n]``.

    Returns:
        ``(first length, last length, documents, tokens)`` a bin: 0, 1, 2 to 3, 4 to 7, ...

    Example:
        >>> import numpy as np
        >>> histogram(np.array([1, 2, 3, 3, 9]))
        [(1, 1, 1, 1), (2, 3, 3, 8), (4, 7, 0, 0), (8, 15, 1, 9)]
    """
    import numpy as np

    # Exact up to 2**53: frexp gives the number of bits.
    bits = np.frexp(lengths.astype(np.float64))[1]
    documents = np.bincount(bits)
    tokens = np.bincount(bits, weights=lengths).astype(np.int64)
    first = int(np.flatnonzero(documents)[0]) if documents.any() else 0
    return [
        ((1 << b) >> 1, max((1 << b) - 1, 0), int(documents[b]), int(tokens[b])) for b in range(first, documents.size)
    ]


@dataclass(frozen=True)
class Sample:
    """A document, decoded.

    Attributes:
        document: Its number.
        tokens: Its length, special tokens included.
        bos: The special token that it begins with, or None.
        text: Its text; of a long one the beginning.
        left_out: Tokens not shown between ``text`` and ``tail``.
        tail: The end of a long one.
        eos: The special token that it ends with, or None.
    """

    document: int
    tokens: int
    bos: str | None
    text: str
    left_out: int
    tail: str
    eos: str | None


def sample(cache: TokenCache, tokenizer: Tokenizer | None, document: int, *, whole: bool = False) -> Sample:
    """Decodes a document (without a tokenizer: spells its ids); if it is long its two ends, unless ``whole``."""
    ids = cache.document(document)
    count = int(ids.size)
    if tokenizer is None:
        shown = ids if whole else ids[:_HEAD_IDS]
        return Sample(document, count, None, " ".join(map(str, shown.tolist())), count - int(shown.size), "", None)
    bos = tokenizer.bos if count and tokenizer.bos_id is not None and int(ids[0]) == tokenizer.bos_id else None
    ids = ids[1:] if bos else ids
    eos = tokenizer.eos if ids.size and tokenizer.eos_id is not None and int(ids[-1]) == tokenizer.eos_id else None
    ids = ids[:-1] if eos else ids
    left_out = 0 if whole else max(0, int(ids.size) - _HEAD_IDS - _TAIL_IDS)
    head, tail = (ids[:_HEAD_IDS], ids[-_TAIL_IDS:]) if left_out else (ids, ids[:0])
    return Sample(document, count, bos, tokenizer.decode(head.tolist()), left_out, tokenizer.decode(tail.tolist()), eos)


def drawn(documents: int, count: int, seed: int) -> list[int]:
    """Numbers of ``count`` documents (all, if there are fewer), drawn without repeating."""
    import numpy as np

    from headrace.index.permutation import Feistel

    if documents == 0:
        return []
    return sorted(Feistel(documents, seed=seed)(np.arange(min(count, documents))).tolist())


def unfinished(cache: str, ledger: Ledger) -> dict[str, Any]:
    """How far an interrupted build got, and the command that finishes it."""
    from headrace.store.ledger import read_part_record

    names = sorted({str(s["part"]) for s in ledger.sources})
    done = [r for name in names if (r := read_part_record(cache, name)) is not None]
    return {
        "path": cache,
        "finished": False,
        "parts": len(names),
        "parts_finished": len(done),
        "documents": sum(r.documents for r in done),
        "tokens": sum(r.tokens for r in done),
        "command": build_command(cache, ledger),
    }


def build_command(cache: str, ledger: Ledger) -> str:
    """The command that a cache is built with, from its ledger."""
    source, layout, tokenizer = ledger.metadata["source"], ledger.layout, ledger.tokenizer
    words = ["headrace", "build", *ledger.metadata["paths"], "--output", cache, "--tokenizer", tokenizer["path"]]
    words += ["--eos", tokenizer["eos"] or "none"]
    for flag, value, default in (
        ("--bos", tokenizer["bos"] or "none", "none"),
        ("--format", source["format"], "auto"),
        ("--text-field", source["text_field"], "text"),
        ("--on-bad-line", source["on_bad_line"], "error"),
        ("--chunk-tokens", str(layout["chunk_elements"]), "65536"),
        ("--compression", layout["compression"], "none"),
    ):
        words += [flag, value] if value != default else []
    for extension in source["extensions"]:
        words += ["--extension", extension]
    return shlex.join([*words, "--dtype", layout["dtype"]])


def _tokenizer(cache: str, ledger: Ledger) -> Tokenizer | None:
    from headrace.ingest.tokenize import recorded_tokenizer

    # A cache may be made of ready ids, by a program that knows of no tokenizer.
    record = ledger.tokenizer
    known = record.get("path") == "bytes" or record.get("file") is not None
    return recorded_tokenizer(cache, record) if known else None


def _show_unfinished(console: Console, state: dict[str, Any]) -> None:
    console.print(
        Text.assemble(
            (state["path"], "bold"),
            (" is unfinished", "yellow"),
            f": {state['parts_finished']:,} of {state['parts']:,} parts are done, {state['documents']:,} documents,"
            f" {state['tokens']:,} tokens.",
        )
    )
    console.print(Text(f"To finish it: {state['command']}"), soft_wrap=True)


def _show_overview(console: Console, facts: dict[str, Any]) -> None:
    layout, tokenizer = facts["layout"], facts["tokenizer"]
    tokens = max(facts["tokens"], 1)
    table = Table.grid(padding=(0, 2))
    rows = {
        "documents": f"{facts['documents']:,}"
        + (f" ({facts['empty_documents']:,} without text)" if facts["empty_documents"] else ""),
        "tokens": f"{facts['tokens']:,} ({facts['text_bytes'] / tokens:.2f} bytes of text a token)",
        "on disk": f"{_bytes(facts['bytes_on_disk'])} ({facts['bytes_on_disk'] / tokens:.2f} bytes a token)",
        "layout": f"{layout['dtype']}, chunks of {layout['chunk_elements']:,} tokens,"
        f" compression {layout['compression']}",
        "tokenizer": f"{tokenizer.get('path', 'not known')}, vocabulary {tokenizer['vocab_size']:,},"
        f" bos {_special(tokenizer, 'bos')}, eos {_special(tokenizer, 'eos')}",
        "parts": f"{facts['parts']:,}, of {facts['source_files']:,} files with {_bytes(facts['source_bytes'])}",
    }
    if facts["skipped_lines"]:
        rows["skipped"] = f"{facts['skipped_lines']:,} bad lines"
    for name, value in rows.items():
        table.add_row(Text(name, "dim"), Text(value))
    console.print(Text(facts["path"], "bold"))
    console.print(table)


def _show_lengths(console: Console, lengths: LengthStatistics) -> None:
    whole = "" if lengths.documents == lengths.of else f", of a sample of {lengths.documents:,} documents"
    console.print(Rule(Text(f"length in tokens (mean {lengths.mean:,.1f}{whole})"), align="left", style="dim"))
    console.print(Text("  ".join(f"{name} {value:,}" for name, value in lengths.quantiles.items())))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("tokens", "documents", "", "of all tokens"):
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    most = max(documents for _, _, documents, _ in lengths.histogram)
    total = max(sum(tokens for *_, tokens in lengths.histogram), 1)
    for first, last, documents, tokens in lengths.histogram:
        span = f"{first:,}" if first == last else f"{first:,} - {last:,}"
        table.add_row(span, f"{documents:,}", Text(_bar(documents / most), "cyan"), f"{tokens / total:.1%}")
    console.print(table)


def _show_sample(console: Console, one: Sample) -> None:
    console.print(Rule(Text(f"document {one.document:,}: {one.tokens:,} tokens"), align="left", style="dim"))
    left_out = f" ... {one.left_out:,} tokens ... " if one.left_out else ""
    text = Text.assemble(
        (one.bos or "", "reverse green"),
        printable(one.text),
        (left_out, "dim italic"),
        printable(one.tail),
        (one.eos or "", "reverse magenta"),
    )
    console.print(text, soft_wrap=True)


def printable(text: str) -> str:
    r"""Text without the characters that would act on a terminal: a document is data, it must not move the cursor.

    Example:
        >>> printable("a\tb\x1b[2J\x9b")
        'a\tb␛[2J�'
    """
    return "".join(c if c in "\n\t" or not _acts(c) else _picture(c) for c in text)


def _acts(c: str) -> bool:
    return c < " " or "\x7f" <= c < "\xa0" or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def _picture(c: str) -> str:
    return chr(0x2400 + ord(c)) if c < " " else "\ufffd"


def _bar(share: float) -> str:
    eighths = round(share * _BAR * 8)
    full, rest = divmod(max(eighths, 1) if share > 0 else 0, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def _bytes(count: int) -> str:
    units = ("B", "kB", "MB", "GB", "TB")
    power = min(len(units) - 1, (len(str(count)) - 1) // 3)
    return f"{count / 1000**power:.{min(power, 1)}f} {units[power]}"


def _special(tokenizer: dict[str, Any], role: str) -> str:
    token = tokenizer.get(role)
    return "none" if token is None else f"{token} ({tokenizer[f'{role}_id']})"
