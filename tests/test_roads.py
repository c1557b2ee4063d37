"""Every function of the library has a road to a user: the command line, a page of the docs, an
example, an experiment, or something that one of these reaches. What is reached from tests alone is
listed by name, and the list is empty.

A name counts as used where code that is itself reached names it; its own docstring and the stubs do
not count. Methods are matched by their name alone, on whatever object.
"""

import ast
import re
import runpy
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(ROOT.glob("lib/*/src/*"))
PACKAGES = tuple(folder.name for folder in SOURCES)
PUBLIC: dict[str, dict[str, str]] = runpy.run_path(str(ROOT / "scripts" / "update_api.py"))[
    "public_names"
]()
HOMES = {
    f"{package}.{name}": f"{home}.{name}"
    for package, names in PUBLIC.items()
    for name, home in names.items()
}
FOR_TESTS = "headrace.testing"
"""Test doubles for users' own tests: their road is a test, by definition."""
CALLED_BY_OTHERS = ("headrace_levanter.config.HeadraceDataConfig",)
"""Classes that stand in for another library's without inheriting from it: Levanter's trainer calls
their methods.
"""
_FENCE = re.compile(r"^```python.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PROGRAM = re.compile(r"from (headrace[\w.]*) import (\w+)")
_ENTRY = re.compile(r"headrace[\w.]*:\w+")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)


@dataclass
class Definition:
    """A function, class or method: the code that runs where it is used, and the names that its
    module imports.
    """

    module: str
    node: ast.AST
    owner: str | None = None
    called: bool = False  # by another library

    def code(self) -> list[ast.AST]:
        node = self.node
        if isinstance(node, ast.ClassDef):
            rest = [child for child in node.body if not isinstance(child, _FUNCTIONS)]
            return [
                *rest,
                *node.bases,
                *node.decorator_list,
                *(keyword.value for keyword in node.keywords),
            ]
        assert isinstance(node, _FUNCTIONS)
        body = node.body[ast.get_docstring(node) is not None :]
        return [*body, node.args, *node.decorator_list, *([node.returns] if node.returns else [])]


def imported_names(tree: ast.AST) -> dict[str, str]:
    """What each name that a file imports from headrace stands for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            names |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in PACKAGES:
                    root = alias.name.split(".")[0]
                    names[alias.asname or root] = alias.name if alias.asname else root
    return names


def dotted(node: ast.expr) -> tuple[str, list[str]]:
    """The first name of ``a.b.c`` and the others; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, parts[::-1]) if isinstance(node, ast.Name) else ("", [])


@dataclass
class Roads:
    """What can be reached from the users' code on."""

    definitions: dict[str, Definition] = field(default_factory=dict[str, Definition])
    imports: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    reached: set[str] = field(default_factory=set[str])
    attributes: set[str] = field(default_factory=set[str])
    _queue: list[str] = field(default_factory=list[str])

    def add_module(self, name: str, tree: ast.Module) -> None:
        self.imports[name] = imported_names(tree)
        foreign = self._foreign(name, tree)
        for node in tree.body:
            if not isinstance(node, _DEFINITIONS):
                continue
            self.definitions[f"{name}.{node.name}"] = Definition(name, node)
            called = node.name in foreign or f"{name}.{node.name}" in CALLED_BY_OTHERS
            for child in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(child, _FUNCTIONS):
                    own = Definition(name, child, f"{name}.{node.name}", called)
                    self.definitions[f"{name}.{node.name}.{child.name}"] = own

    def _foreign(self, module: str, tree: ast.Module) -> set[str]:
        """Classes that inherit from those of other libraries, whose methods these may call."""
        own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        foreign: set[str] = set()
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                bases = [b.value if isinstance(b, ast.Subscript) else b for b in node.bases]
                names = {dotted(base)[0] for base in bases}
                known = (
                    own
                    | self.imports[module].keys()
                    | {"Protocol", "Generic", "NamedTuple", "ABC", "abc", ""}
                )
                if names - known or names & foreign:
                    foreign.add(node.name)
        return foreign

    def use(self, code: Iterable[ast.AST], module: str, names: dict[str, str]) -> None:
        """Everything that some code names is reached."""
        for node in (child for part in code for child in ast.walk(part)):
            if isinstance(node, ast.Name):
                self.reach(names.get(node.id, f"{module}.{node.id}"))
            elif isinstance(node, ast.Attribute):
                self.attributes.add(node.attr)
                first, rest = dotted(node)
                if first in names:
                    self.reach(".".join([names[first], *rest]))
            elif isinstance(node, ast.ImportFrom) and not module:
                for name in imported_names(node).values():
                    self.reach(name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._use_text(node.value)
            elif isinstance(node, ast.JoinedStr):
                self._use_text(
                    "".join(str(v.value) for v in node.values if isinstance(v, ast.Constant))
                )

    def _use_text(self, text: str) -> None:
        """Programs in strings, modules that are imported by their name, what is written like an
        entry point, methods that ``getattr`` takes.
        """
        if _ENTRY.fullmatch(text):
            self.reach(text.replace(":", "."))
        for package, name in _PROGRAM.findall(text):
            self.reach(f"{package}.{name}")
        if text in self.imports:
            for name, definition in self.definitions.items():
                if definition.module == text and definition.owner is None:
                    self._late[text].add(name)
        if text.isidentifier():
            self.attributes.add(text)

    def __post_init__(self) -> None:
        self._late: defaultdict[str, set[str]] = defaultdict(set)

    def reach(self, name: str) -> None:
        name = HOMES.get(name, name)
        for reached in (name, name.rpartition(".")[0]):
            if reached in self.definitions and reached not in self.reached:
                self.reached.add(reached)
                self._queue.append(reached)

    def follow(self) -> None:
        """Goes on from what is reached until nothing is added."""
        while True:
            while self._queue:
                definition = self.definitions[self._queue.pop()]
                self.use(definition.code(), definition.module, self.imports[definition.module])
            for name, definition in self.definitions.items():
                last = name.rpartition(".")[2]
                if definition.owner in self.reached and (
                    definition.called or last.startswith("__") or last in self.attributes
                ):
                    self.reach(name)
            for name in (n for names in self._late.values() for n in names):
                if name.rpartition(".")[2] in self.attributes:
                    self.reach(name)
            if not self._queue:
                return

    def unreached(self) -> list[str]:
        """Functions and classes without a road; of a class without one, the class alone."""
        names = (n for n in self.definitions if n not in self.reached)
        return sorted(
            n for n in names if (o := self.definitions[n].owner) is None or o in self.reached
        )


def users_code() -> Iterator[ast.Module]:
    """Pages, examples and experiments; the list of the API is no user, nor are the benches."""
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        if page.parent.name != "api":
            yield from (ast.parse(code) for code in _FENCE.findall(page.read_text()))
    for folder in ("examples", "experiments"):
        yield from (ast.parse(path.read_text()) for path in sorted((ROOT / folder).rglob("*.py")))


def library() -> dict[str, ast.Module]:
    trees: dict[str, ast.Module] = {}
    for folder in SOURCES:
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            trees[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text())
    return trees


def roads_of(modules: dict[str, ast.Module], users: Iterable[ast.Module]) -> Roads:
    roads = Roads()
    for name, tree in modules.items():
        roads.add_module(name, tree)
    for name, tree in modules.items():
        names = roads.imports[name]
        at_import = [
            n for n in tree.body if not isinstance(n, (*_DEFINITIONS, ast.Import, ast.ImportFrom))
        ]
        roads.use(at_import, name, names)
        stored = (n for n in at_import if isinstance(n, ast.Assign | ast.AnnAssign))
        variables = {n.id for part in stored for n in ast.walk(part) if isinstance(n, ast.Name)}
        for node in (n for n in tree.body if isinstance(n, _DEFINITIONS)):
            makers = {
                dotted(d.func if isinstance(d, ast.Call) else d)[0] for d in node.decorator_list
            }
            registers = makers & {"atexit", *variables} or any(
                f"{name}.{m}" in roads.definitions for m in makers
            )
            if registers or name.startswith("headrace.cli.") or node.name.startswith("__"):
                roads.reach(f"{name}.{node.name}")
    for tree in users:
        roads.use([tree], "", imported_names(tree))
    for entry in entry_points_of_packages():
        roads.reach(entry)
    roads.follow()
    return roads


def entry_points_of_packages() -> Iterator[str]:
    """What the packages bring to the core under a name of a config or of the command line."""
    for folder in SOURCES:
        project = tomllib.loads((folder.parents[1] / "pyproject.toml").read_text())["project"]
        for group in project.get("entry-points", {}).values():
            yield from (value.replace(":", ".") for value in group.values())


def test_every_function_has_a_road_to_a_user():
    unreached = roads_of(library(), users_code()).unreached()
    assert [name for name in unreached if not name.startswith(f"{FOR_TESTS}.")] == []


def test_a_function_without_a_road_is_found():
    modules = {
        "headrace.a": ast.parse(
            "from headrace.b import helped\n\ndef asked():\n    return helped()\n\ndef alone():\n "
            "   return dead()\n\n"
            "def dead():\n    return C().used()\n\nclass C:\n    def used(self): ...\n    def"
            " other(self): ..."
        ),
        "headrace.b": ast.parse("def helped():\n    '''>>> unhelped()'''\n\ndef unhelped(): ..."),
    }
    user = "from headrace.a import C, asked\nC()"
    roads = roads_of(modules, [ast.parse(user)])
    assert roads.unreached() == [
        *("headrace.a.C.other", "headrace.a.C.used", "headrace.a.alone", "headrace.a.dead"),
        "headrace.b.unhelped",
    ]
    assert roads_of(modules, [ast.parse(f"{user}\nC().used()")]).unreached() == [
        *("headrace.a.C.other", "headrace.a.alone", "headrace.a.dead", "headrace.b.unhelped")
    ]
