"""Measure how the code is built: its size in tokens, its density, its imports, its names, what a
call passes through.

    uv run scripts/house.py                    every measure, with what stands above its bar
    uv run scripts/house.py --only walks       one of them
    uv run scripts/house.py --check            exit status 1 where a bar is missed
    uv run scripts/house.py --json FILE        write bars and lists to FILE

All of it is found in the sources, whatever module they lie in: packages by their folder under
``lib/``, classes by what they inherit, commands by their options, and what is run by the public
names of ``headrace``. What each measure counts is said by its function. Size is counted in tokens,
not in lines, because density does not help there. A bar that binds asks what is wrong with the
design; it is never moved in the change that needs it.
"""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tokenize
import types
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import yaml

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "lib" / "headrace" / "src" / "headrace"
"""The core: the measures of classes, names and cycles are of it alone."""

ROOTS = (
    *("AsyncDataset", "PlannedDataset", "RowSource"),  # datasets and where their rows lie
    *("IndexMap", "Order", "BlockOrder"),  # orders
    *(
        "SequencePolicy",
        "DrawPolicy",
        "Tabled",
        "Anchored",
        "Policy",
    ),  # mixing policies, and what some of them can do
)
"""Classes that nobody should ask an object about. They count with all that inherit from them or,
where one is a Protocol, that have its members. Names that no class has are passed over.
"""
CONFIG_ROOTS = ("BraidShuffleConfig", "BlockShuffleConfig", "PackingConfig", "StageConfig")
"""Settings of those classes, which are counted by themselves."""
VAGUE = """found held said told given taken kept wanted known begun seen asked left made shown counted done gone brought
    whole own mine ours theirs here place places before after behind within""".split()  # noqa: SIM905 - thirty lines
"""Participles, adverbs and the like, which alone do not say what a name holds. Underscores around
them do not help.
"""

TOKENS: dict[str, int | None] = {"headrace": None, "all": None}
"""Most tokens that a package, and all of them together, may have; None: only reported."""
LONG_LINES = 0
TEST_IMPORTS = 50
PUBLIC_FILES = ("errors", "metrics")
"""Files that users import from by their name."""

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass(frozen=True)
class Bar:
    """A number, the most that it may be (None: it is only reported), and what makes it so large."""

    name: str
    measured: float
    at_most: float | None
    offenders: Sequence[str] = ()

    @property
    def met(self) -> bool:
        return self.at_most is None or self.measured <= self.at_most


@dataclasses.dataclass(frozen=True)
class Measure:
    """Bars, and lists to read beside them."""

    bars: Sequence[Bar]
    lists: dict[str, list[str]] = dataclasses.field(default_factory=dict[str, list[str]])


@cache
def parse_sources() -> dict[str, ast.Module]:
    """The library's modules by their path in the package."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in paths}


def walk_nodes() -> Iterator[tuple[str, ast.AST]]:
    """Every node of the library with its file."""
    return ((path, node) for path, tree in parse_sources().items() for node in ast.walk(tree))


def find_packages() -> dict[str, Path]:
    """The folders of sources of every package of the workspace, by the package's name."""
    folders = sorted(ROOT.glob("lib/*/src/*"))
    return {folder.parents[1].name: folder for folder in folders if folder.is_dir()}


@dataclasses.dataclass(frozen=True)
class FileSize:
    """What one file holds, comments and docstrings left out.

    Attributes:
        tokens: Its tokens, without line ends and indents. The parts of an f-string count as its
            tokens do, whatever Python reads the file.
        lines: Lines that hold a token.
        characters: Characters of these lines without their indent.
        long_lines: Lines of the file, comments included, of more than 100 characters.
        function_tokens: Tokens of each function by its name and line, with those of the functions
            in it.
    """

    tokens: int
    lines: int
    characters: int
    long_lines: Sequence[int]
    function_tokens: dict[str, int]


LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
LAYOUT |= {tokenize.ENCODING, tokenize.ENDMARKER}
FSTRING_START = getattr(tokenize, "FSTRING_START", None)  # of Python 3.12 and newer
FSTRING_END = getattr(tokenize, "FSTRING_END", None)


def list_documented(tree: ast.AST) -> set[tuple[int, int]]:
    """Where the docstrings of a module and of all that is in it begin."""
    starts = set[tuple[int, int]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | FunctionNode) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                starts.add((first.lineno, first.col_offset))
    return starts


def count_parts(node: ast.JoinedStr) -> int:
    """Tokens of an f-string: its two ends, each text, each expression with its
    braces and format.
    """
    tokens = 2
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            expression = tokenize.generate_tokens(io.StringIO(ast.unparse(part.value)).readline)
            tokens += 2 + sum(token.type not in LAYOUT for token in expression)
            tokens += 2 * (part.conversion != -1)
            tokens += (
                count_parts(part.format_spec) - 1
                if isinstance(part.format_spec, ast.JoinedStr)
                else 0
            )
        else:
            tokens += 1
    return tokens


def list_tokens(source: str, tree: ast.AST) -> list[tuple[int, int]]:
    """First line and number of tokens, in the order of the source; an f-string is one entry."""
    documented = list_documented(tree)
    parts: dict[tuple[int, int], int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            start = (
                node.lineno,
                node.col_offset,
            )  # of its format, too, in Python 3.11: the whole counts
            parts[start] = max(count_parts(node), parts.get(start, 0))
    entries: list[tuple[int, int]] = []
    depth = 0  # of f-strings in f-strings, which newer Pythons cut into tokens
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == FSTRING_END:
            depth -= 1
            continue
        if token.type == FSTRING_START:
            depth += 1
            if depth > 1:
                continue
        elif depth or token.type in LAYOUT or token.start in documented:
            continue
        entries.append((token.start[0], parts.get(token.start, 1)))
    return entries


@cache
def measure_file(path: Path) -> FileSize:
    """The size of one file."""
    source = path.read_text()
    tree = ast.parse(source)
    entries = list_tokens(source, tree)
    lines = source.splitlines()
    with_code = {line for line, _ in entries}
    functions = {
        f"{node.lineno} {node.name}": sum(
            count for line, count in entries if node.lineno <= line <= (node.end_lineno or 0)
        )
        for node in ast.walk(tree)
        if isinstance(node, FunctionNode)
    }
    return FileSize(
        tokens=sum(count for _, count in entries),
        lines=len(with_code),
        characters=sum(len(lines[line - 1].strip()) for line in with_code),
        long_lines=[number for number, line in enumerate(lines, 1) if len(line) > 100],
        function_tokens=functions,
    )


def measure_tokens() -> Measure:
    """Tokens of each package, of the median function and of the largest ones; how wide the lines
    are.
    """
    sizes: dict[str, FileSize] = {}
    bars: list[Bar] = []
    rooms = collections.Counter[str]()
    for package, folder in find_packages().items():
        of_package = {
            path.relative_to(folder).as_posix(): measure_file(path)
            for path in sorted(folder.rglob("*.py"))
        }
        tokens = sum(size.tokens for size in of_package.values())
        bars.append(Bar(f"tokens of {package}", tokens, TOKENS.get(package)))
        for path, size in of_package.items():
            sizes[f"{package}/{path}"] = size
            rooms[f"{package}/{path.partition('/')[0]}"] += size.tokens
    functions = {
        f"{path}:{name}": count
        for path, size in sizes.items()
        for name, count in size.function_tokens.items()
    }
    largest = sorted(functions.items(), key=lambda item: -item[1])
    code_lines = sum(size.lines for size in sizes.values())
    width = sum(size.characters for size in sizes.values()) / code_lines
    long_lines = [f"{path}:{line}" for path, size in sizes.items() for line in size.long_lines]
    bars += [
        Bar("tokens of all packages", sum(size.tokens for size in sizes.values()), TOKENS["all"]),
        Bar("tokens of the median function", statistics.median(functions.values()), None),
        Bar("characters of a line of code", round(width, 1), 38),
        Bar("lines of more than 100 characters", len(long_lines), LONG_LINES, long_lines),
    ]
    lists = {
        "tokens of folders": [f"{room}: {count}" for room, count in rooms.most_common()],
        "largest functions": [f"{name}: {count} tokens" for name, count in largest[:20]],
    }
    return Measure(bars, lists)


def is_tuple_assignment(node: ast.AST) -> TypeGuard[ast.Assign]:
    """Whether several things are assigned at once, ``a, b = x, y``, other than to swap them."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    targets = [target for target in node.targets if isinstance(target, ast.Tuple)]
    written = {ast.unparse(name) for target in targets for name in target.elts}
    read = {ast.unparse(value) for value in node.value.elts}
    return bool(targets) and not written & read


def measure_statements() -> Measure:
    """Assignments of unlike things per 1,000 lines of code, and imports inside functions."""
    tuples: list[str] = []
    imports: list[str] = []
    lines = 0
    for package, folder in find_packages().items():
        for path in sorted(folder.rglob("*.py")):
            tree = ast.parse(path.read_text())
            lines += measure_file(path).lines
            label = f"{package}/{path.relative_to(folder).as_posix()}"
            nodes = list(ast.walk(tree))
            tuples += [f"{label}:{node.lineno}" for node in nodes if is_tuple_assignment(node)]
            functions = [node for node in nodes if isinstance(node, FunctionNode)]
            inside = {
                (inner.lineno, ast.unparse(inner))
                for function in functions
                for inner in ast.walk(function)
                if isinstance(inner, ast.Import | ast.ImportFrom)
            }
            imports += [f"{label}:{line} {statement}" for line, statement in sorted(inside)]
    return Measure(
        [
            Bar(
                "tuple assignments per 1,000 lines of code",
                round(1000 * len(tuples) / lines, 2),
                2,
                tuples,
            ),
            Bar("imports inside functions", len(imports), None),
        ],
        {"imports inside functions": imports},
    )


def measure_surface() -> Measure:
    """What a user has to choose from: public names, fields of configs, commands and
    their options.
    """
    import typer

    from headrace.cli.application import application

    names: dict[str, set[str]] = {}
    for package, folder in find_packages().items():
        stubs = [ast.parse(stub.read_text()) for stub in folder.rglob("__init__.pyi")]
        imports = [n for stub in stubs for n in stub.body if isinstance(n, ast.ImportFrom)]
        names[package] = {alias.name for node in imports for alias in node.names}
    configs = {
        node.name: sum(
            isinstance(member, ast.AnnAssign) and "ClassVar" not in ast.unparse(member.annotation)
            for member in node.body
        )
        for _, node in walk_nodes()
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config")
    }
    commands: dict[str, int] = {}

    def add_commands(group: Any, prefix: str) -> None:
        for name in group.commands:
            command = group.get_command(None, name)
            if hasattr(command, "commands"):
                add_commands(command, f"{prefix}{name} ")
            elif not command.hidden:
                commands[f"{prefix}{name}"] = len(command.params)

    add_commands(typer.main.get_command(application()), "")
    return Measure(
        [
            Bar("public names of the core", len(names["headrace"]), 95),
            Bar("public names", len(set().union(*names.values())), None),
            Bar("fields of configs", sum(configs.values()), None),
            Bar("commands", len(commands), None),
            Bar("options of commands", sum(commands.values()), None),
        ],
        {
            "fields of each config": [
                f"{name}: {count}" for name, count in sorted(configs.items())
            ],
            "options of each command": [
                f"{name}: {count}" for name, count in sorted(commands.items())
            ],
        },
    )


def list_test_imports() -> Iterator[tuple[str, bool]]:
    """Each import of headrace in the tests, with whether it is from an inner module: a file, not a
    package.
    """
    folders = {folder.name: folder for folder in find_packages().values()}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
                continue
            package, _, inner = node.module.partition(".")
            if package not in folders:
                continue
            is_file = (
                (folders[package] / f"{inner.replace('.', '/')}.py").is_file() if inner else False
            )
            label = f"{path.relative_to(ROOT)}:{node.lineno} {node.module}"
            yield label, is_file and inner not in PUBLIC_FILES


def measure_tests() -> Measure:
    """Per cent of the imports of tests that are from inner modules."""
    imports = list(list_test_imports())
    inner = [label for label, is_inner in imports if is_inner]
    share = round(100 * len(inner) / len(imports), 1)
    of_modules = collections.Counter(label.split()[-1] for label in inner)
    return Measure(
        [Bar("test imports from inner modules, per cent", share, TEST_IMPORTS)],
        {"inner modules": [f"{name}: {count}" for name, count in of_modules.most_common(60)]},
    )


def measure_cycles() -> Measure:
    """Groups of modules that import each other, at any level of their code, imports for type
    checkers too.
    """
    import grimp

    graph = grimp.build_graph("headrace", cache_dir=None)
    groups = {
        frozenset(
            graph.find_upstream_modules(module) & graph.find_downstream_modules(module) | {module}
        )
        for module in graph.modules
    }
    cycles = sorted(" <-> ".join(sorted(group)) for group in groups if len(group) > 1)
    return Measure([Bar("import cycles", len(cycles), 0, cycles)])


def name_of(node: ast.expr) -> str:
    """The last name of ``a.b.Name[T]``; empty where there is none."""
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return (
        node.id
        if isinstance(node, ast.Name)
        else node.attr
        if isinstance(node, ast.Attribute)
        else ""
    )


def list_members(node: ast.ClassDef) -> set[str]:
    """Methods, properties and annotated fields of a class, and what its methods
    assign to ``self``.
    """
    names = {
        n.name for n in node.body if isinstance(n, FunctionNode) and not n.name.startswith("__")
    }
    names |= {name_of(n.target) for n in node.body if isinstance(n, ast.AnnAssign)}
    stored = (
        n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
    )
    return names | {n.attr for n in stored if name_of(n.value) == "self"}


def find_family(roots: Sequence[str]) -> dict[str, set[str]]:
    """The classes of ``roots`` and all that derive from them or have a Protocol's members: files by
    class name.
    """
    classes = [(path, node) for path, node in walk_nodes() if isinstance(node, ast.ClassDef)]
    bases = {node.name: {name_of(base) for base in node.bases} for _, node in classes}
    members = {node.name: list_members(node) for _, node in classes}
    family = {root for root in roots if root in bases}
    protocols = {root for root in family if "Protocol" in bases[root]}
    while True:
        more = {
            n
            for n in bases
            if bases[n] & family or any(members[p] <= members[n] for p in protocols)
        } - family
        if not more:
            break
        family |= more
    return {name: {path for path, node in classes if node.name == name} for name in family}


def list_tested_names(node: ast.AST) -> set[str]:
    """Names of the classes that a node compares an object's class with."""
    tested: list[ast.expr] = []
    if (
        isinstance(node, ast.Call)
        and name_of(node.func) in ("isinstance", "issubclass")
        and len(node.args) == 2
    ):
        tested = [node.args[1]]
    elif isinstance(node, ast.MatchClass):
        tested = [node.cls]
    elif (
        isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Call)
        and name_of(node.left.func) == "type"
    ):
        tested = node.comparators
    return {
        name_of(n)
        for expression in tested
        for n in ast.walk(expression)
        if isinstance(n, ast.Name | ast.Attribute)
    }


def find_class_tests(roots: Sequence[str]) -> list[str]:
    """Lines outside a class's own module that ask whether an object is of it."""
    family = find_family(roots)
    asked: dict[tuple[str, int], set[str]] = collections.defaultdict(set)
    for path, node in walk_nodes():
        names = {
            name for name in list_tested_names(node) if name in family and path not in family[name]
        }
        if names and isinstance(node, ast.expr | ast.MatchClass):
            asked[path, node.lineno] |= names
    return [
        f"{path}:{line} {', '.join(sorted(names))}" for (path, line), names in sorted(asked.items())
    ]


def measure_isinstance() -> Measure:
    """Lines that ask for the class of a dataset, an order or a policy in a module that does not
    define that class.
    """
    if not find_family(ROOTS):
        raise SystemExit(
            f"the library has none of {', '.join(ROOTS)}: name its roots in {Path(__file__).name}"
        )
    lines = find_class_tests(ROOTS)
    of_configs = find_class_tests(CONFIG_ROOTS)
    return Measure(
        [
            Bar("lines that ask for a class", len(lines), 5, lines),
            Bar("files with such lines", len({line.split(":")[0] for line in lines}), None),
            Bar("lines that ask for the class of a setting", len(of_configs), None, of_configs),
        ],
        {
            "classes": sorted(find_family(ROOTS)),
            "classes of settings": sorted(find_family(CONFIG_ROOTS)),
        },
    )


def measure_names() -> Measure:
    """Per cent of assignments to names (loops and comprehensions included, parameters and
    attributes not) and of functions whose name is a word of ``VAGUE``.
    """
    assigned = [
        (n.id.strip("_"), f"{path}:{n.lineno}")
        for path, n in walk_nodes()
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]
    functions = [
        (n.name.strip("_"), f"{path}:{n.lineno}")
        for path, n in walk_nodes()
        if isinstance(n, FunctionNode)
    ]
    bars: list[Bar] = []
    lists: dict[str, list[str]] = {}
    for kind, names, most in (
        ("assigned names", assigned, 0.25),
        ("function names", functions, 0.15),
    ):
        vague = [(name, line) for name, line in names if name.lower() in VAGUE]
        bars.append(
            Bar(
                f"vague among {len(names):,} {kind}, per cent",
                100 * len(vague) / len(names),
                most,
            )
        )
        lists[f"{len(vague)} vague {kind}"] = [f"{line} {name}" for name, line in sorted(vague)]
    return Measure(bars, lists)


WALKS: dict[str, int | None] = {
    "first_batch_at": 42,
    "batch_at": 27,
    "dataset": 35,
    "build": 22,
}
"""Most files that each call may pass through; None: it is only reported."""


def settings_of_build(folder: Path, text: str) -> dict[str, Any]:
    """Arguments of ``build_cache``, all but the output."""
    from headrace import SourceConfig, TokenizerConfig

    tokenizer = TokenizerConfig(path=str(folder / "tokenizer.json"), eos="<eos>")
    source = SourceConfig([str(folder / text)])
    return {"source": source, "tokenizer": tokenizer, "engine": "inline", "progress": False}


def prepare_walks(folder: Path) -> None:
    """Writes two texts, a tokenizer, three token caches and the config that mixes them."""
    from tokenizers import Tokenizer, models

    from headrace import build_cache

    Tokenizer(models.WordLevel({"<unk>": 0, "<eos>": 1}, "<unk>")).save(
        str(folder / "tokenizer.json")
    )
    (folder / "one.jsonl").write_text('{"text": "water"}\n')
    (folder / "many.jsonl").write_text('{"text": "water"}\n' * 40_000)
    components = {name: {"cache": str(folder / name)} for name in ("first", "second", "third")}
    for component in components.values():
        build_cache(output=component["cache"], **settings_of_build(folder, "many.jsonl"))
    tokenizer = {"path": str(folder / "tokenizer.json"), "eos": "<eos>"}
    config = {
        "seq_len": 64,
        "batch_size": 8,
        "num_steps": 100,
        "tokenizer": tokenizer,
        "components": components,
    }
    (folder / "data.yaml").write_text(yaml.safe_dump(config))


def prepare_call(name: str, folder: Path) -> Callable[[], object]:
    """What comes before a walk, and the call that is followed.

    ``dataset`` and ``build`` are the first of their process. ``batch_at`` is followed in a loader
    that exists and has given one batch: what the order counts out for the first and keeps is not on
    the way of any other. The walk of that first batch is ``first_batch_at``.
    """
    from headrace import DataLoader, build_cache, load_config

    if name == "build":
        return partial(
            build_cache, output=str(folder / "built"), **settings_of_build(folder, "one.jsonl")
        )
    config = load_config(str(folder / "data.yaml"))
    if name == "dataset":
        return config.dataset
    loader = DataLoader(config.dataset())
    if name == "batch_at":
        loader.batch_at(0)
    return partial(loader.batch_at, 1)


def record_walk(name: str, folder: Path) -> tuple[dict[str, str], int]:
    """The files of which a call enters a function, in any thread, with the first function of each,
    and how often the calls move from one file to another. What runs because a module is imported
    does not count.
    """
    entered: dict[str, str] = {}
    moves = 0
    latest = ""
    recording = False
    package = f"{PACKAGE}/"

    def is_importing(frame: types.FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(package):
                return True
            frame = frame.f_back
        return False

    def note_call(frame: types.FrameType, event: str, _: Any) -> None:
        nonlocal moves, latest
        code = frame.f_code
        if recording and event == "call" and code.co_filename.startswith(package):
            path = code.co_filename.removeprefix(package)
            if path not in entered and not is_importing(frame):
                entered[path] = code.co_qualname
            if path in entered:
                moves += path != latest
                latest = path

    threading.setprofile(note_call)  # for threads that begin before the call, too
    call = prepare_call(name, folder)
    recording = True
    sys.setprofile(note_call)
    call()
    sys.setprofile(None)
    recording = False
    return entered, moves


def measure_walks() -> Measure:
    """Files that three calls pass through, each in an interpreter of its own: a batch of three
    braided components, the dataset of their config, the build of one document.
    """
    bars: list[Bar] = []
    lists: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        prepare_walks(Path(folder))
        for name, limit in WALKS.items():
            command = [sys.executable, __file__, "--walk", name, "--folder", folder]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            walk, moves = json.loads(output)
            lists[name] = [f"{path} {function}" for path, function in walk.items()]
            bars.append(Bar(f"files that {name} passes through", len(walk), limit))
            bars.append(Bar(f"moves between files of {name}", moves, None))
    return Measure(bars, lists)


def measure_load() -> Measure:
    """CPU seconds of loading a config of 200 components, right and with one value wrong; the median
    of five, after one that is not counted.
    """
    from headrace import HeadraceError, load_config

    def time_load(path: Path, wrong: bool) -> float:
        began = time.process_time()
        refused = False
        try:
            load_config(str(path))
        except HeadraceError:
            refused = True
        seconds = time.process_time() - began
        if refused != wrong:
            raise SystemExit(
                f"measure_load: the config was {'refused' if refused else 'taken'}, which it must"
                " not be"
            )
        return seconds

    components = {
        f"source_{n}": {"cache": f"caches/{n}", "weight": {"linear": {0: 0, 5000: n + 1}}}
        for n in range(200)
    }
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data.yaml")
        for title, wrong, limit in (("right", False, 0.1), ("one value wrong", True, 0.12)):
            if wrong:
                components["source_137"]["weight"] = {"linear": {0: 0, 5000: "many"}}
            path.write_text(yaml.safe_dump({"components": components}, sort_keys=False))
            seconds = statistics.median([time_load(path, wrong) for _ in range(6)][1:])
            bars.append(Bar(f"seconds to load 200 components, {title}", round(seconds, 4), limit))
    return Measure(bars)


PLAN = {
    "seq_len": 2048,
    "batch_size": 512,
    "num_steps": 20_000,
    "prefetch_bytes": 2 << 30,
    "components": {
        name: {"cache": f"caches/{name}", "weight": weight, "expected_tokens": tokens}
        for name, weight, tokens in (("web", 6, 2e11), ("code", 3, 5e10), ("math", 1, 5e9))
    },
}
STARTUP = {
    "import headrace": 0.05,
    "headrace --version": 0.12,
    "headrace --help": 0.3,
    "headrace build --help": 0.4,
    "headrace config show plan.yaml": 1.0,
    "headrace config simulate plan.yaml": 1.5,
    "headrace config check plan.yaml": 1.5,
}
"""CPU seconds that each may take in a folder with ``plan.yaml``, the interpreter's own included.
The last three have room for a machine on which other programs run: there they take up to .4 more.
"""


def measure_startup() -> Measure:
    """CPU seconds until the command line, or an import, has answered; the least of five processes
    each.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "plan.yaml").write_text(yaml.safe_dump(PLAN))
        return Measure([_startup_bar(what, limit, folder) for what, limit in STARTUP.items()])


def _startup_bar(what: str, limit: float, folder: str) -> Bar:
    words = what.split()
    program = (
        what
        if words[0] == "import"
        else f"import sys; sys.argv = {words}; from headrace.cli import main; main()"
    )
    command = [sys.executable, "-c", program]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # a user's second call
    seconds: list[float] = []
    for _ in range(6):
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, env=environment)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)
    return Bar(f"CPU seconds of {what}", round(min(seconds[1:]), 3), limit)


MEASURES = {
    "tokens": measure_tokens,
    "statements": measure_statements,
    "surface": measure_surface,
    "tests": measure_tests,
    "cycles": measure_cycles,
    "isinstance": measure_isinstance,
    "names": measure_names,
    "walks": measure_walks,
    "load": measure_load,
    "startup": measure_startup,
}


def print_measure(name: str, measure: Measure) -> None:
    print(f"\n{name}")
    for bar in measure.bars:
        verdict = "" if bar.at_most is None else "met" if bar.met else "MISSED"
        limit = "" if bar.at_most is None else f"at most {bar.at_most:g}"
        print(f"  {verdict:<6}  {bar.name:<52} {bar.measured:>8.6g}  {limit}")
        print(*(f"            {offender}\n" for offender in bar.offenders), sep="", end="")
    for title, lines in measure.lists.items():
        print(f"  {title}:", *lines, sep="\n            ")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=MEASURES, help="one measure")
    parser.add_argument("--check", action="store_true", help="exit status 1 where a bar is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write bars and lists to FILE")
    parser.add_argument(
        "--walk", choices=WALKS, help=argparse.SUPPRESS
    )  # how measure_walks calls itself
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.walk:
        print(json.dumps(record_walk(args.walk, args.folder)))
        return 0
    measures = {name: measure() for name, measure in MEASURES.items() if args.only in (None, name)}
    for name, measure in measures.items():
        print_measure(name, measure)
    if args.json:
        args.json.write_text(
            json.dumps({n: dataclasses.asdict(m) for n, m in measures.items()}, indent=1) + "\n"
        )
    missed = [
        f"{name}: {bar.name}"
        for name, measure in measures.items()
        for bar in measure.bars
        if not bar.met
    ]
    print(f"\n{len(missed)} bars missed", *missed, sep="\n  ")
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
