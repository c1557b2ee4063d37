"""``headrace init``: builds token caches from a folder of texts, and writes a config and a training
program.
"""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.build import OnBadLineOption, TokenizerOption
from headrace.cli.exits import kept_when_interrupted
from headrace.cli.options import cache_at, check_local_folder
from headrace.cli.shown import say
from headrace.errors import (
    ConfigError,
    HeadraceError,
    check_path,
    command_line,
    format_count,
    install_command,
)
from headrace.numbers import in_bytes

if TYPE_CHECKING:
    from headrace.ingest.append import Newer
    from headrace.ingest.build import BuildReport
    from headrace.ingest.source import SourceConfig
    from headrace.ingest.survey import FoundSource
    from headrace.ingest.tokenize import TokenizerConfig
    from headrace.store.cache import TokenCache

CONFIG = "run.yaml"
PROGRAM = "train.py"
_SEQ_LEN = 256
_BATCH = 16
_HELD_OUT = 64  # rows of a source
_HELD_OUT_OF = 20  # at most one row in so many is held out
_FEWEST_STEPS = 100
_MOST_STEPS = 1000


def command(
    folder: Annotated[
        str,
        typer.Argument(help="Folder of texts; each folder in it is a source.", metavar="FOLDER"),
    ],
    tokenizer: TokenizerOption = "bytes",
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Folder for caches, config and program.", metavar="FOLDER"
        ),
    ] = Path(),
    text_field: Annotated[
        list[str] | None,
        typer.Option(
            help="Field with the text, in sources that have it; by default, text or content"
            " (repeatable).",
            metavar="FIELD",
        ),
    ] = None,
    on_bad_line: OnBadLineOption = "error",
    restart: Annotated[
        bool, typer.Option("--restart", help="Delete existing caches and start over.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Look at the sources, show what would be done, and write nothing."
        ),
    ] = False,
    append: Annotated[
        bool,
        typer.Option(
            "--append", help="Add the files that came since to the caches of an earlier init."
        ),
    ] = False,
) -> None:
    """Build token caches from a folder of texts, and write a run.yaml and a train.py that trains on
    them.

    Each subfolder becomes a source, weighted by its number of tokens. The program saves
    checkpoints, resumes after it is killed, and writes a report at the end. If this command is
    interrupted, run it again to resume. Once it is done, the same command finds the files that
    came since, and says how to train on them.

    For example:

        headrace init texts

        headrace init texts --tokenizer llama3/ --output runs/first
    """
    from headrace.ingest.survey import survey
    from headrace.ingest.tokenize import TokenizerConfig
    from headrace.store import files

    check_path("folder", folder, "Give a folder that holds texts.")
    output = output.expanduser()
    _check_output(folder, output)
    # With a config, an earlier command has done all.
    is_done = (output / CONFIG).exists()
    if is_done and restart:
        raise _exists(output / CONFIG)
    if append and not is_done:
        cure = "Leave out --append: nothing was built there."
        raise ConfigError("has no run.yaml", field="output", value=str(output), cure=cure)
    # 1. A source for each folder of texts
    sources = [
        _Source(
            texts,
            texts.config(text_field or (), on_bad_line),
            str(output / "caches" / texts.name),
        )
        for texts in survey(folder)
    ]
    with_text = [source for source in sources if source.texts.files]
    if is_done:
        again = command_line(
            "init",
            folder,
            output=output,
            text_field=text_field,
            on_bad_line=None if on_bad_line == "error" else on_bad_line,
            append=True,
        )
        _grow(output, with_text, again, append=append and not dry_run)
        return
    # 2. What was found, and what is wrong with it, before anything is written
    for source in sources:
        say(_in_words(source))
    _warn_of_long_text([source.texts for source in with_text])
    _refuse_unused_fields(text_field or [], sources)
    encoder = TokenizerConfig(tokenizer)
    unbuilt = [source for source in with_text if restart or not source.is_built]
    _refuse_faults(unbuilt, encoder)
    if dry_run:
        count = format_count(len(unbuilt), "source")
        say(f"The first records of {count} can be built from; nothing was written.")
        return
    # 3. Their caches, and the program and config of a run over them, the config last
    for source in with_text:
        _build(source, encoder, restart=restart)
    chosen = [source for source in with_text if source.rows]
    if not chosen:
        cure = f"Give more text: a row has {_SEQ_LEN} tokens, more than any source."
        raise ConfigError(
            "has too little text to train on", field="folder", value=folder, cure=cure
        )
    files.write_file(output / PROGRAM, [_program()])
    files.write_file(output / CONFIG, [_config_text(folder, chosen).encode()])
    _say_what_is_next(output)


@dataclass(frozen=True)
class _Source:
    """A folder of texts, how its records are read, and where its cache is."""

    texts: FoundSource
    config: SourceConfig
    cache: str

    @property
    def name(self) -> str:
        """Name of the component."""
        return self.texts.name

    @property
    def is_built(self) -> bool:
        """Whether its cache is there."""
        from headrace.store.ledger import is_finished

        return is_finished(self.cache)

    @cached_property
    def opened(self) -> TokenCache:
        """Its cache, once it is built."""
        return cache_at(self.cache)

    @property
    def rows(self) -> int:
        """The rows that its cache fills: none crosses two of its parts."""
        return int((self.opened.part_tokens // _SEQ_LEN).sum())


def _refuse_faults(sources: list[_Source], encoder: TokenizerConfig) -> None:
    """Raises what is wrong with the first records of sources."""
    from headrace.ingest.first_look import faults_of_sources, refuse_faults

    faults = faults_of_sources([(source.config, encoder) for source in sources])
    refuse_faults([fault for of_source in faults for fault in of_source])


def _build(source: _Source, encoder: TokenizerConfig, *, restart: bool) -> None:
    """Builds the cache of a source, unless it is there."""
    from headrace.ingest.build import build_cache

    with kept_when_interrupted(), _restarted_alone(source.cache):
        report = build_cache(
            source.config, encoder, source.cache, restart=restart, first_look=False
        )
    _say_what_was_skipped(source, report)
    if not source.rows:
        few = format_count(report.tokens, "token")
        say(
            f"{source.name} is left out of {CONFIG}: it has {few}, but a row has {_SEQ_LEN}",
            err=True,
        )


def _say_what_was_skipped(source: _Source, report: BuildReport) -> None:
    if report.skipped_lines:
        skipped = format_count(report.skipped_lines, "bad line")
        say(f"{source.name}: {skipped} skipped, the first: {report.first_skipped}", err=True)


def _grow(output: Path, sources: list[_Source], again: str, *, append: bool) -> None:
    """Adds the files that came since to caches of an earlier command, and builds those of sources
    that came; or, without ``append``, says which these are and what does it: ``again``.
    """
    from headrace.ingest.append import append_cache, encoder_of
    from headrace.store.lease import end_lease_of_gone

    finished = [source for source in sources if source.is_built]
    for source in finished:
        end_lease_of_gone(source.cache)
    joining = [source for source in sources if source not in finished]
    growing = _with_new_files(finished)
    _say_which_folders_are_gone(sources, output)
    has_news = bool(growing or joining)
    if append and finished and not has_news:
        say(f"No file came since: nothing was added to the caches in {output}.")
        return
    if not finished or not has_news:
        raise _exists(output / CONFIG)
    for source in joining:
        say(f"a new source, {_in_words(source)}")
    if not append:
        say(f"To train on this, too, type: {again}")
        return
    encoder = encoder_of(finished[0].cache)
    _refuse_faults([*growing, *joining], encoder)
    for source in growing:
        config = source.config
        reading = {"extensions": config.extensions, "on_bad_line": config.on_bad_line}
        with kept_when_interrupted():
            report = append_cache(config.paths, source.cache, source=reading)
        _say_what_was_skipped(source, report)
    for source in joining:
        _build(source, encoder, restart=False)
    _say_how_to_use(sources, output)


def _with_new_files(sources: list[_Source]) -> list[_Source]:
    """The sources with files that came since, and configs of these files alone; says what came."""
    from headrace.ingest.append import newer_files

    growing: list[_Source] = []
    for source in sources:
        newer = newer_files(source.config.files(), source.cache)
        _say_what_stays(Path(source.cache), newer)
        if newer.added:
            only_these = replace(source.config, paths=[file.path for file in newer.added])
            growing.append(replace(source, config=only_these))
            files = format_count(len(newer.added), "new file")
            size = in_bytes(sum(file.size or 0 for file in newer.added))
            say(f"{source.name}: {files}, {size} -> {source.cache}")
    return growing


def _say_which_folders_are_gone(sources: list[_Source], output: Path) -> None:
    from headrace.ingest.append import newer_files
    from headrace.store.ledger import is_finished

    names = {source.name for source in sources}
    for cache in sorted((output / "caches").glob("*")):
        if cache.name not in names and is_finished(str(cache)):
            _say_what_stays(cache, newer_files([], str(cache)))


def _say_what_stays(cache: Path, newer: Newer) -> None:
    """Says which files of a cache are not what they were."""
    differences = {"changed": newer.changed, "renamed": newer.renamed, "gone": newer.removed}
    for what, paths in differences.items():
        if paths:
            files = format_count(len(paths), "file")
            say(f"{cache.name}: {files} {what} since, {paths[0]} first; {cache} keeps what it has")


def _say_how_to_use(sources: list[_Source], output: Path) -> None:
    """Prints the lines that sources need in the config, and what moves a run to all of it."""
    import yaml

    components = yaml.safe_load((output / CONFIG).read_text())["components"]
    new = [source for source in sources if source.name not in components]
    missing = [_component(source) for source in new if source.rows]
    if missing:
        say("\n".join([f"Add to the components of {output / CONFIG}:", *missing]))
    say("Then move a run that has begun to it; new runs use it anyway:")
    if str(output) != ".":
        say(f"  cd {shlex.quote(str(output))}")
    say(f"  {command_line('run amend', 'runs/1', CONFIG, newest_caches=True)}")


@contextmanager
def _restarted_alone(cache: str) -> Iterator[None]:
    """Adds to cures with ``--restart``, which is for all caches, what starts over with this one."""
    try:
        yield
    except HeadraceError as error:
        if "--restart" not in (error.cure or ""):
            raise
        cure = (
            f"{error.cure} That is for all sources; for this one alone: rm -r {shlex.quote(cache)}"
        )
        raise error.but(cure=cure) from error


def _program() -> bytes:
    return (resources.files("headrace.demo") / PROGRAM).read_bytes()


def _config_text(folder: str, sources: list[_Source]) -> str:
    """The config of a first run, with comments."""
    rows = sum(source.rows for source in sources)
    batch = min(_BATCH, 1 << (rows.bit_length() - 1))
    one_pass = rows // batch
    steps = min(max(one_pass, _FEWEST_STEPS), _MOST_STEPS)
    lines = [
        f"# The data of this run, from {folder}. All fields: headrace config show --schema;"
        " problems: headrace config check run.yaml",
        f"seq_len: {_SEQ_LEN}  # tokens in a row",
        f"batch_size: {batch}  # rows in a batch, over all devices",
        f"num_steps: {steps}  # one pass over all text is {format_count(one_pass, 'step')}",
        "seed: 0  # another seed gives another order",
        "components:  # weight: share of rows, here that of tokens; validation: rows held out",
    ]
    lines += map(_component, sources)
    return "\n".join(lines) + "\n"


def _component(source: _Source) -> str:
    """The line of a source in the config."""
    import yaml

    # quoted where YAML would read a number
    name = yaml.safe_dump(source.name).removesuffix("...\n").strip()
    tokens = source.opened.num_tokens
    held_out = min(_HELD_OUT, source.rows // _HELD_OUT_OF)
    fields = [f"cache: caches/{source.name}", f"weight: {tokens / 1e6:.3g}"]
    fields += [f"validation: {held_out}"] if held_out > 1 else []
    size = f"{tokens:,} tokens of {format_count(source.texts.files, 'file')}"
    return f"  {name}: {{{', '.join(fields)}}}  # {size}"


def _check_output(folder: str, output: Path) -> None:
    """Refuses an output that is a file, holds a program of its own, or is inside the folder of
    texts.
    """
    from headrace.store import files

    check_local_folder(output)
    if output.exists() and not output.is_dir():
        raise ConfigError(
            "is a file", field="--output", value=str(output), cure="Give a folder: --output FOLDER."
        )
    program = output / PROGRAM
    # Without a config, the program is the rest of a command that was killed.
    is_done = (output / CONFIG).exists()
    if not is_done and program.exists() and program.read_bytes() != _program():
        raise _exists(program)
    if files.is_local(folder) and output.resolve().is_relative_to(
        files.local_path(folder).resolve()
    ):
        cure = "Give a folder outside it: --output FOLDER."
        raise ConfigError(
            f"is inside {folder}, the folder of texts", field="output", value=str(output), cure=cure
        )


def _exists(path: Path) -> ConfigError:
    cure = f"Give another folder: --output FOLDER, or delete {path}."
    problem = "already exists, and is not overwritten"
    return ConfigError(problem, field="output", value=str(path), cure=cure)


def _warn_of_long_text(sources: list[FoundSource]) -> None:
    """Says if one text is most of all that there is."""
    total = sum(source.bytes for source in sources)
    for source in sources:
        if source.largest is None or sum(one.files for one in sources) == 1:
            continue
        size = source.largest.size or 0
        if 2 * size > total:
            cure = f"lower the weight of {source.name} in {CONFIG}"
            if source.files > 1:
                cure = "move it to a folder of its own, which gets a weight of its own"
            say(
                f"{source.largest.path} is one document with {size / total:.0%} of all text,"
                f" {in_bytes(size)}, and will be that share of the rows. To train on less of it,"
                f" {cure}.",
                err=True,
            )


def _refuse_unused_fields(text_fields: list[str], sources: list[_Source]) -> None:
    for name in text_fields:
        if all(source.config.text_field != name for source in sources):
            cure = "Give a field that holds text in the first record of a source, or leave it out."
            raise ConfigError(
                "is the text field of no source", field="text_field", value=name, cure=cure
            )


def _in_words(source: _Source) -> str:
    from headrace.ingest.source import NO_FILE

    texts = source.texts
    left_out = ", ".join(f"{count:,} {ending}" for ending, count in texts.left_out.most_common(5))
    if not texts.files:
        return f"{texts.name}: no text ({left_out or NO_FILE})"
    left_out = f"; left out: {left_out}" if left_out else ""
    files = f"{format_count(texts.files, 'file')} ({', '.join(texts.endings)})"
    field = source.config.text_field
    text = "" if field == "text" else f", text in field {field}"
    return f"{texts.name}: {files}, {in_bytes(texts.bytes)}{text} -> {source.cache}{left_out}"


def _say_what_is_next(output: Path) -> None:
    say(f"Wrote {output / CONFIG} and {output / PROGRAM}. Next:")
    if str(output) != ".":
        say(f"  cd {shlex.quote(str(output))}")
    if any(importlib.util.find_spec(name) is None for name in ("optax", "orbax")):
        say(f"  {install_command('headrace[demo]')}  # optax and orbax, which train.py needs")
    say(f"  {command_line('config simulate', CONFIG)}  # what it will read")
    say(f"  python {PROGRAM}  # trains; run it again to resume after a stop")
