"""Measure how the library is built: its size, its functions, its imports, its names, and what a call passes through.

    uv run scripts/house.py                    every measure, with what stands above its bar
    uv run scripts/house.py --only walks       one of them
    uv run scripts/house.py --check            exit status 1 where a bar is missed
    uv run scripts/house.py --json FILE        write bars and lists to FILE

All of it is found in the sources, whatever module they lie in: classes by what they inherit, commands by their
options, and what is run by the public names of ``headrace``. What each measure counts is said by its function.
"""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import yaml

PACKAGE = Path(__file__).resolve().parent.parent / "lib" / "headrace" / "src" / "headrace"

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
"""Classes that nobody should ask an object about. They count with all that inherit from them or, where one is a
Protocol, that have its members. Names that no class has are passed over."""
CONFIG_ROOTS = ("BraidShuffleConfig", "BlockShuffleConfig", "PackingConfig", "StageConfig")
"""Settings of those classes, which are counted by themselves."""
VAGUE = """found held said told given taken kept wanted known begun seen asked left made shown counted done gone brought
    whole own mine ours theirs here place places before after behind within""".split()  # noqa: SIM905 - thirty lines
"""Participles, adverbs and the like, which alone do not say what a name holds. Underscores around them do not help."""

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


def measure_cycles() -> Measure:
    """Groups of modules that import each other, at any level of their code; imports for type checkers do not count."""
    import grimp

    graph = grimp.build_graph("headrace", cache_dir=None, exclude_type_checking_imports=True)
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
    """Methods, properties and annotated fields of a class, and what its methods assign to ``self``."""
    names = {
        n.name for n in node.body if isinstance(n, FunctionNode) and not n.name.startswith("__")
    }
    names |= {name_of(n.target) for n in node.body if isinstance(n, ast.AnnAssign)}
    stored = (
        n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
    )
    return names | {n.attr for n in stored if name_of(n.value) == "self"}


def find_family(roots: Sequence[str]) -> dict[str, set[str]]:
    """The classes of ``roots`` and all that derive from them or have a Protocol's members: files by class name."""
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
    """Lines that ask for the class of a dataset, an order or a policy in a module that does not define that class."""
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
    """Per cent of assignments to names (loops and comprehensions included, parameters and attributes not) and of
    functions whose name is a word of ``VAGUE``.
    """
    assigned = [
        n.id.strip("_")
        for _, n in walk_nodes()
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]
    functions = [n.name.strip("_") for _, n in walk_nodes() if isinstance(n, FunctionNode)]
    bars: list[Bar] = []
    lists: dict[str, list[str]] = {}
    for kind, names, most in (
        ("assigned names", assigned, 0.25),
        ("function names", functions, 0.15),
    ):
        vague = collections.Counter(name for name in names if name.lower() in VAGUE)
        bars.append(
            Bar(
                f"vague among {len(names):,} {kind}, per cent",
                100 * vague.total() / len(names),
                most,
            )
        )
        lists[f"{vague.total()} vague {kind}"] = [
            f"{name}: {count}" for name, count in vague.most_common(40)
        ]
    return Measure(bars, lists)


WALKS = {"first_batch_at": None, "batch_at": 37, "dataset": 56, "build": 26}  # docs/design says why
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

    ``dataset`` and ``build`` are the first of their process. ``batch_at`` is followed in a loader that exists and has
    given one batch: what the order counts out for the first and keeps is not on the way of any other. The walk of
    that first batch is ``first_batch_at``.
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


def record_walk(name: str, folder: Path) -> dict[str, str]:
    """The files of which a call enters a function, in any thread, with the first function of each. What runs because
    a module is imported does not count.
    """
    entered: dict[str, str] = {}
    recording = False
    package = f"{PACKAGE}/"

    def is_importing(frame: types.FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(package):
                return True
            frame = frame.f_back
        return False

    def note_call(frame: types.FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if recording and event == "call" and code.co_filename.startswith(package):
            path = code.co_filename.removeprefix(package)
            if path not in entered and not is_importing(frame):
                entered[path] = code.co_qualname

    threading.setprofile(note_call)  # for threads that begin before the call, too
    call = prepare_call(name, folder)
    recording = True
    sys.setprofile(note_call)
    call()
    sys.setprofile(None)
    recording = False
    return entered


def measure_walks() -> Measure:
    """Files that three calls pass through, each in an interpreter of its own: a batch of three braided components, the
    dataset of their config, the build of one document.
    """
    bars: list[Bar] = []
    lists: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        prepare_walks(Path(folder))
        for name, limit in WALKS.items():
            command = [sys.executable, __file__, "--walk", name, "--folder", folder]
            walk = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            lists[name] = [f"{path} {function}" for path, function in walk.items()]
            bars.append(Bar(f"files that {name} passes through", len(walk), limit))
    return Measure(bars, lists)


def measure_load() -> Measure:
    """CPU seconds of loading a config of 200 components, right and with one value wrong; the median of five, after one
    that is not counted.
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
                f"measure_load: the config was {'refused' if refused else 'taken'}, which it must not be"
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


STARTUP = {
    "import headrace": 0.05,
    "headrace --version": 0.12,
    "headrace --help": 0.3,
    "headrace build --help": 0.4,
}
"""CPU seconds that each may take, the interpreter's own included."""


def measure_startup() -> Measure:
    """CPU seconds until the command line, or an import, has answered; the least of five processes each."""
    bars: list[Bar] = []
    for what, limit in STARTUP.items():
        words = what.split()
        program = (
            what
            if words[0] == "import"
            else f"import sys; sys.argv = {words}; from headrace.cli import main; main()"
        )
        seconds: list[float] = []
        for _ in range(6):
            began = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
            ended = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)
        bars.append(Bar(f"CPU seconds of {what}", round(min(seconds[1:]), 3), limit))
    return Measure(bars)


MEASURES = {
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
