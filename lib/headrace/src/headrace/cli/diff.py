"""``headrace diff``: compares the ledgers of two caches, or a run with an edited config, and shows
the amendment that would allow the change.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from headrace.cli.options import AsJson, Settings
from headrace.cli.shown import figures_table, working
from headrace.errors import format_count

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.config.lm_data import LmDataConfig
    from headrace.mix.stage_config import AmendmentConfig
    from headrace.run.changes import RunChanges
    from headrace.run.manifest import RunManifest
    from headrace.store.cache import TokenCache

_SHOWN_DIFFERENCES = 8
_SHOWN_FIELDS = 40
_NOTHING = "-"


def command(
    a: Annotated[str, typer.Argument(help="Folder or URL of a cache, or of a run.", metavar="A")],
    b: Annotated[
        str,
        typer.Argument(help="Another cache, or an edited config (YAML) of the run.", metavar="B"),
    ],
    settings: Settings = None,
    step: Annotated[
        int | None,
        typer.Option(help="For a run: the steps done; by default, those of its last checkpoint."),
    ] = None,
    resolved: Annotated[
        bool,
        typer.Option(
            "--resolved",
            help="For a run: also show what follows from the differences of the config.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two caches, or a run with an edited config.

    For two token caches, it compares the ledgers: tokenizer, layout, leaves, sources, parts,
    counts. For a run and a config, it shows the fields that differ, and the amendment that allows
    the change. Reads no tokens. Exits with status 1 if they differ.

    For example:

        headrace diff cache cache-of-last-week

        headrace diff runs/1 run.yaml
    """
    from headrace.errors import ConfigError
    from headrace.run.manifest import RunManifest

    with_config = b.endswith((".yaml", ".yml", ".json"))
    manifest = RunManifest.load(a) if with_config else None
    if manifest is not None:
        differ = _compare_run(a, manifest, b, settings, step, resolved, as_json)
    elif with_config or settings or step is not None or resolved:
        problem = (
            "must be the folder of a run to be compared with a config, settings, --step or"
            " --resolved"
        )
        cure = "Name the folder passed to open_run, and a config (.yaml)."
        raise ConfigError(problem, field="A", value=a, cure=cure)
    else:
        differ = _compare_caches(a, b, as_json)
    if differ:
        raise typer.Exit(1)


def _compare_run(
    run: str,
    manifest: RunManifest,
    config: str,
    settings: list[str] | None,
    step: int | None,
    resolved: bool,
    as_json: bool,
) -> bool:
    """Shows what a config changes in a run; returns whether the runs differ, by amendments or
    otherwise.
    """
    from rich.console import Console

    from headrace.cli.options import load_as_begun
    from headrace.errors import check_at_least
    from headrace.run.changes import newer_generations, newer_tombstones, run_changes
    from headrace.run.manifest import last_checkpoint

    check_at_least("--step", step, 0, "Give the number of steps that are done.")
    steps_done = (last_checkpoint(run, manifest) or 0) if step is None else step
    with working("comparing"):
        edited = load_as_begun(config, settings, run)
        changes = run_changes(manifest, edited, steps_done)
        newer = newer_tombstones(manifest, edited)
        appended = newer_generations(edited)
    if as_json:
        amendment = None if changes.amendment is None else _fields_of(changes.amendment)
        facts = {
            "run": run,
            "config": config,
            "step": steps_done,
            **asdict(changes),
            "amendment": amendment,
        }
        facts |= {"newer_tombstones": newer, "newer_generations": appended}
        typer.echo(
            json.dumps(facts if resolved else facts | {"resolved": None}, ensure_ascii=False)
        )
    else:
        console = Console(highlight=False, soft_wrap=True)
        _show_changes(console, changes, run, resolved)
        if newer:
            typer.echo("Documents that this run still trains on have been removed since.")
        if appended:
            typer.echo("Documents that this run does not train on have been appended since.")
        _show_amendments(console, changes, edited, steps_done, newer, appended)
    return not changes.same


def _show_amendments(
    console: Console,
    changes: RunChanges,
    edited: LmDataConfig,
    steps_done: int,
    removed: dict[str, int | list[int]],
    appended: dict[str, int | list[int]],
) -> None:
    """Shows the amendments of the config that would make all changes that a run can make, to be
    pasted as they are.
    """
    from dataclasses import replace

    from rich.text import Text

    from headrace.mix.stage_config import AmendmentConfig

    amendment = changes.amendment
    if amendment is None and not removed and not appended:
        return
    declared = list(edited.amendments)
    if amendment is None:
        last = max((one.step for one in declared), default=0)
        amendment = AmendmentConfig(max(steps_done, last + 1))
    amendment = replace(amendment, remove=removed, extend=appended)
    # What has no place for the old mixture beside the new one has to be put back.
    restore = amendment.weights or amendment.drop or (amendment.add and edited.weights is not None)
    add = "write all amendments so" if declared else "add"
    doing = f"restore the mixture and {add}" if restore else add
    console.print(f"To make this change from step {amendment.step:,} on, {doing}:")
    console.print(Text(_written([*declared, amendment]), "bold"))


def _show_changes(console: Console, changes: RunChanges, run: str, resolved: bool) -> None:
    from rich.text import Text

    if changes.fields is None:
        console.print(
            "The run was started without a config, so only what follows from it is compared."
        )
    for line in (changes.fields or [])[:_SHOWN_FIELDS]:
        console.print(Text(line))
    if (more := len(changes.fields or []) - _SHOWN_FIELDS) > 0:
        console.print(Text(f"{more:,} more (all with --json)", "dim"))
    if resolved or (changes.fields is None and not changes.same):
        console.print(Text("What follows from it:", "dim"))
        for line in changes.resolved:
            console.print(Text(f"  {line}"))
    if changes.same:
        console.print(Text.assemble(("the same run ", "green"), run))
    elif changes.first_step is not None:
        console.print(
            f"The run and the config differ by amendments, from step {changes.first_step:,} on."
        )
    elif changes.refused:
        console.print("A run cannot make these changes; undo them, or use another folder:")
        for line in changes.refused[:_SHOWN_FIELDS]:
            console.print(Text(f"  {line}"))
    elif changes.amendment is None:
        console.print("They are different runs: restore the run's config, or use another folder.")


def _fields_of(amendment: AmendmentConfig) -> dict[str, Any]:
    return {name: value for name, value in asdict(amendment).items() if value or name == "step"}


def _written(amendments: list[AmendmentConfig]) -> str:
    """Amendments as written in a config.

    Example:
        >>> from headrace.mix.stage_config import AmendmentConfig
        >>> print(_written([AmendmentConfig(60, weights={"web": 2}, drop=["code"])]))
        amendments:
        - step: 60
          weights: {web: 2}
          drop: [code]
    """
    import yaml

    # Blends written in several lines have YAML's anchors where an object occurs twice: plain values
    # have none.
    plain = json.loads(json.dumps([_fields_of(amendment) for amendment in amendments]))
    for amendment in plain:
        for name in ("add", "weights"):
            if name in amendment:
                amendment[name] = _with_steps(amendment[name])
    return yaml.safe_dump(
        {"amendments": plain}, sort_keys=False, default_flow_style=None, width=1000
    ).rstrip()


def _with_steps(value: Any) -> Any:
    """A (nested) mapping whose keys are steps where they look like them, as users write them."""
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {
        int(name) if name.isdecimal() else name: _with_steps(inner)
        for name, inner in fields.items()
    }


@dataclass(frozen=True)
class Difference:
    """A difference: section and field, and the value in both caches; None: no value."""

    what: str
    a: Any
    b: Any


def _compare_caches(a: str, b: str, as_json: bool) -> bool:
    """Shows the differences of two caches; returns whether there are any."""
    from rich.console import Console

    from headrace.store.joined import open_cache

    with working("comparing"):
        first = open_cache(a)
        second = open_cache(b)
        all_differences = differences(first, second)
    same_content = first.fingerprint == second.fingerprint
    if as_json:
        facts = {"a": a, "b": b, "same": not all_differences, "same_content": same_content}
        typer.echo(
            json.dumps(
                {**facts, "differences": [asdict(d) for d in all_differences]}, ensure_ascii=False
            )
        )
    else:
        _show_differences(Console(highlight=False), a, b, all_differences, same_content)
    return bool(all_differences)


def differences(a: TokenCache, b: TokenCache) -> list[Difference]:
    """The differences of two caches, most important first.

    Example:
        >>> import headrace.testing
        >>> one, two = (headrace.testing.tiny_cache(documents=n) for n in (5, 6))
        >>> [d.what for d in differences(one, two)][:2]
        ['documents', 'tokens']
    """
    from headrace.store.tombstones import removed_documents, tombstones_of

    all_differences: list[Difference] = []

    def compare(what: str, get: Callable[[TokenCache], Any]) -> None:
        x = get(a)
        y = get(b)
        if x != y:
            all_differences.append(Difference(what, x, y))

    compare("documents", lambda c: c.num_documents)
    compare("tokens", lambda c: c.num_tokens)
    all_differences += _fields("tokenizer", a.ledger.tokenizer, b.ledger.tokenizer)
    all_differences += _fields("layout", a.ledger.layout, b.ledger.layout)
    all_differences += _fields(
        "leaf",
        *({str(s["name"]): f"{s['dtype']}, {s['kind']}" for s in c.ledger.leaves} for c in (a, b)),
    )
    all_differences += _fields(
        "source", *({_name(s): _version(s) for s in c.ledger.sources} for c in (a, b))
    )
    compare("generations", lambda c: len(c.members))
    compare("removed documents", lambda c: removed_documents(c).total)
    compare(
        "tombstones",
        lambda c: [(stones := tombstones_of(one)).digest(len(stones)) for one in c.members],
    )
    compare("parts", lambda c: len(c.parts))
    all_differences += _fields(
        "part",
        *({p.name.removeprefix(f"{c.path}/"): _part(p) for p in c.ledger.parts} for c in (a, b)),
    )
    metadata = [c.whole_ledger.metadata for c in (a, b)]
    for name in sorted({name for one in metadata for name in one}):
        all_differences += _fields(f"metadata {name}", *({"": one.get(name)} for one in metadata))
    compare("code version", lambda c: c.ledger.code_version)
    compare("format version", lambda c: c.ledger.format_version)
    return all_differences


def _fields(section: str, a: dict[str, Any], b: dict[str, Any]) -> list[Difference]:
    """Fields in which two mappings differ; nested mappings are compared field by field."""
    all_differences: list[Difference] = []
    for name in sorted({*a, *b}):
        x = a.get(name)
        y = b.get(name)
        what = f"{section} {name}".strip()
        if isinstance(x, dict) and isinstance(y, dict):
            all_differences += _fields(what, x, y)
        elif x != y:
            all_differences.append(Difference(what, x, y))
    return all_differences


def _name(source: dict[str, Any]) -> str:
    return " ".join(
        str(v) for k, v in source.items() if k not in ("size", "version", "part", "digest")
    )


def _version(source: dict[str, Any]) -> str:
    return ", ".join(
        f"{k} {source[k]}" for k in ("size", "version", "digest") if source.get(k) is not None
    )


def _part(part: Any) -> str:
    leaves = "".join(f", {name} {leaf.digest[:19]}" for name, leaf in sorted(part.leaves.items()))
    documents = format_count(part.documents, "document")
    tokens = format_count(part.tokens, "token")
    return f"{documents}, {tokens}, {part.digest[:19]}{leaves}"


def _show_differences(
    console: Console, a: str, b: str, found: list[Difference], same_content: bool
) -> None:
    from rich.text import Text

    if not found:
        console.print(Text.assemble(("the same ", "green"), f"{a} and {b}"))
        return
    table = figures_table("", a, b, left=3)
    counts: dict[str, int] = {}
    for d in found:
        section = d.what.split(" ", 1)[0]
        counts[section] = counts.get(section, 0) + 1
        if counts[section] <= _SHOWN_DIFFERENCES:
            table.add_row(Text(d.what), Text(_format_value(d.a)), Text(_format_value(d.b)))
    console.print(table)
    for section, count in counts.items():
        if count > _SHOWN_DIFFERENCES:
            console.print(
                Text(f"{count - _SHOWN_DIFFERENCES:,} more of {section} (all with --json)", "dim")
            )
    content = (
        "The tokens are the same."
        if same_content
        else "The tokens or the boundaries of parts differ."
    )
    console.print(Text(f"{format_count(len(found), 'difference')}. {content}"))


def _format_value(value: Any) -> str:
    return _NOTHING if value is None else f"{value:,}" if isinstance(value, int) else str(value)
