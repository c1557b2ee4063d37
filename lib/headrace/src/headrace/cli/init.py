"""``headrace init``: builds token caches from a folder of texts, and writes a config and a training
program.
"""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.build_options import OnBadLineOption, TokenizerOption
from headrace.cli.exits import kept_when_interrupted
from headrace.cli.options import check_local_folder
from headrace.cli.shown import in_bytes, say
from headrace.errors import check_path, format_count

if TYPE_CHECKING:
    from headrace.ingest.source import SourceConfig
    from headrace.ingest.survey import FoundSource

CONFIG = "run.yaml"
PROGRAM = "train.py"
_SEQ_LEN = 256
_BATCH = 16
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
) -> None:
    """Build token caches from a folder of texts, and write a run.yaml and a train.py that trains on
    them.

    Each subfolder becomes a source, weighted by its number of tokens. The program saves
    checkpoints, resumes after it is killed, and writes a report at the end. If this command is
    interrupted, run it again to resume.

    For example:

        headrace init texts

        headrace init texts --tokenizer llama3/ --output runs/first
    """
    from headrace.errors import ConfigError
    from headrace.ingest.build import build_cache
    from headrace.ingest.first_look import faults_of_sources, refuse_faults
    from headrace.ingest.survey import survey
    from headrace.ingest.tokenize import TokenizerConfig
    from headrace.store import durable
    from headrace.store.joined import open_cache
    from headrace.store.ledger import is_finished

    check_path("folder", folder, "Give a folder that holds texts.")
    output = output.expanduser()
    _check_output(folder, output)
    listed = [(source, source.config(text_field or (), on_bad_line)) for source in survey(folder)]
    for source, config in listed:
        say(_in_words(source, config, output))
    _refuse_unused_fields(text_field or [], [config for _, config in listed])
    with_text = [(source, config) for source, config in listed if source.files]
    caches = {source.name: output / "caches" / source.name for source, _ in with_text}
    encoder = TokenizerConfig(tokenizer)
    unbuilt = [
        (config, encoder)
        for source, config in with_text
        if restart or not is_finished(str(caches[source.name]))
    ]
    refuse_faults([fault for faults in faults_of_sources(unbuilt) for fault in faults])
    if dry_run:
        sources = format_count(len(unbuilt), "source")
        say(f"The first records of {sources} can be built from; nothing was written.")
        return
    chosen: list[tuple[FoundSource, int, int]] = []
    for source, config in with_text:
        cache = caches[source.name]
        with kept_when_interrupted(), _restarted_alone(cache):
            report = build_cache(config, encoder, str(cache), restart=restart, first_look=False)
        rows = int((open_cache(cache).part_tokens // _SEQ_LEN).sum())
        if report.skipped_lines:
            skipped = format_count(report.skipped_lines, "bad line")
            say(f"{source.name}: {skipped} skipped, the first: {report.first_skipped}", err=True)
        if rows:
            chosen.append((source, report.tokens, rows))
        else:
            few = format_count(report.tokens, "token")
            say(
                f"{source.name} is left out of {CONFIG}: it has {few}, but a row has {_SEQ_LEN}",
                err=True,
            )
    if not chosen:
        cure = f"Give more text: a row has {_SEQ_LEN} tokens, more than any source."
        raise ConfigError(
            "has too little text to train on", field="folder", value=folder, cure=cure
        )
    # The config comes last: with it, all is there.
    durable.write_file(output / PROGRAM, [_program()])
    durable.write_file(output / CONFIG, [config_text(folder, chosen).encode()])
    _say_what_is_next(output)


@contextmanager
def _restarted_alone(cache: Path) -> Iterator[None]:
    """Adds to cures with ``--restart``, which is for all caches, what starts over with this one."""
    from headrace.errors import HeadraceError

    try:
        yield
    except HeadraceError as error:
        if "--restart" not in (error.cure or ""):
            raise
        cure = (
            f"{error.cure} That is for all sources; for this one alone:"
            f" rm -r {shlex.quote(str(cache))}"
        )
        value = {} if error.value is None else {"value": error.value}
        raise type(error)(error.problem, field=error.field, cure=cure, **value) from error


def _program() -> bytes:
    return (resources.files("headrace.demo") / PROGRAM).read_bytes()


def config_text(folder: str, taken: list[tuple[FoundSource, int, int]]) -> str:
    """The config of a first run, with comments, from sources with their tokens and rows."""
    import yaml

    rows = sum(rows for _, _, rows in taken)
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
        "components:",
    ]
    for source, tokens, _ in taken:
        name = (
            yaml.safe_dump(source.name).removesuffix("...\n").strip()
        )  # quoted where YAML would read a number
        size = f"{tokens:,} tokens of {format_count(source.files, 'file')}"
        lines.append(
            f"  {name}: {{cache: caches/{source.name}, weight: {tokens / 1e6:.3g}}}  # {size}"
        )
    return "\n".join(lines) + "\n"


def _check_output(folder: str, output: Path) -> None:
    """Refuses an output that is a file, holds a config or program, or is inside the folder of
    texts.
    """
    from headrace.errors import ConfigError
    from headrace.store import files

    check_local_folder(output)
    if output.exists() and not output.is_dir():
        raise ConfigError(
            "is a file", field="--output", value=str(output), cure="Give a folder: --output FOLDER."
        )
    program = output / PROGRAM
    # Without a config, the program is the rest of a command that was killed.
    has_own = program.exists() and program.read_bytes() != _program()
    for name in (CONFIG, *([PROGRAM] if has_own else [])):
        if (output / name).exists():
            cure = f"Give another folder: --output FOLDER, or delete {output / name}."
            raise ConfigError(
                "already exists, and is not overwritten",
                field="output",
                value=str(output / name),
                cure=cure,
            )
    if files.is_local(folder) and output.resolve().is_relative_to(
        files.local_path(folder).resolve()
    ):
        cure = "Give a folder outside it: --output FOLDER."
        raise ConfigError(
            f"is inside {folder}, the folder of texts", field="output", value=str(output), cure=cure
        )


def _refuse_unused_fields(text_fields: list[str], configs: list[SourceConfig]) -> None:
    from headrace.errors import ConfigError

    for name in text_fields:
        if all(config.text_field != name for config in configs):
            cure = "Give a field that holds text in the first record of a source, or leave it out."
            raise ConfigError(
                "is the text field of no source", field="text_field", value=name, cure=cure
            )


def _in_words(source: FoundSource, config: SourceConfig, output: Path) -> str:
    what = (
        f"{format_count(source.files, 'file')} ({', '.join(source.endings)}),"
        f" {in_bytes(source.bytes)}"
    )
    left_out = ", ".join(f"{count:,} {ending}" for ending, count in source.left_out.most_common(5))
    if not source.files:
        return f"{source.name}: no text ({left_out})"
    left_out = f"; left out: {left_out}" if left_out else ""
    what += "" if config.text_field == "text" else f", text in field {config.text_field}"
    return f"{source.name}: {what} -> {output / 'caches' / source.name}{left_out}"


def _say_what_is_next(output: Path) -> None:
    from headrace.errors import install_command

    say(f"Wrote {output / CONFIG} and {output / PROGRAM}. Next:")
    if str(output) != ".":
        say(f"  cd {shlex.quote(str(output))}")
    if importlib.util.find_spec("optax") is None:
        say(f"  {install_command('headrace[demo]')}  # optax, which train.py needs")
    say(f"  headrace config simulate {CONFIG}  # what it will read")
    say(f"  python {PROGRAM}  # trains; run it again to resume after a stop")
