"""The repository keeps its own promises: pins, licence, commands, links, the README's example."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

import headrace

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "lib" / "headrace"
COMMANDS = [
    "python3 -m pip install -qU --target .uv uv && PYTHONPATH=.uv python3 -m uv run --no-dev"
    " headrace demo",
    "python3 -m pip install -qU --target .uv uv && PYTHONPATH=.uv python3 -m uv run pytest",
]


OWN = {folder.name for folder in (ROOT / "lib").iterdir()}


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


update_constraints = load_script("update_constraints")
update_page = load_script("bench/update_page")


def committed_files() -> list[Path]:
    """Text files that git has or would take; without git, what lies in the known folders."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:
        folders = ["lib", "tests", "scripts", "docs", "experiments", ".ci"]
        files = [*ROOT.glob("*"), *(p for folder in folders for p in (ROOT / folder).rglob("*"))]
    suffixes = {
        ".py",
        ".md",
        ".toml",
        ".txt",
        ".json",
        ".yaml",
        ".yml",
        ".html",
        ".css",
        ".js",
        ".cff",
        "",
    }
    return [
        p for p in files if p.is_file() and p.suffix in suffixes and "__pycache__" not in p.parts
    ]


def test_the_tables_of_the_pages_are_those_of_the_records(tmp_path):
    for name, parts in (("performance", 3), ("order", 1)):
        page = (ROOT / "docs" / f"{name}.md").read_text()
        assert page.count("<!-- end -->") >= parts
        assert update_page.update(page) == page
    record = {
        "bars": [
            {
                "name": "a: x",
                "measured": 0.25,
                "limit": 0.5,
                "kind": "at least",
                "tolerance": 0,
                "ok": False,
            },
            {
                "name": "the same: y",
                "measured": 12345.6,
                "limit": 1,
                "kind": "within",
                "tolerance": 0.02,
                "ok": False,
            },
            {"name": "b", "measured": 1, "limit": 2, "kind": "at most", "tolerance": 0, "ok": True},
        ],
        "tables": [{"columns": ["x", "y|z"], "rows": [[1000, None]]}],
        "notes": ["* is a star"],
    }
    (tmp_path / "r.json").write_text(json.dumps(record))
    old = (
        "<!-- bars r -->\nold\n<!-- end -->\nwords\n<!-- table r 0 --><!-- end -->\n<!-- notes r"
        " -->\n<!-- end -->"
    )
    assert (
        "| a: x | 0.25 | at least 0.5 |\n| a: y | 12,346 | 1 +- 0.02 |\n\n<!--"
        in update_page.update(old, tmp_path)
    )
    assert "1 of 3 bars are met." in update_page.update(old, tmp_path)
    assert "old" not in update_page.update(old, tmp_path)
    assert "\nwords\n" in update_page.update(old, tmp_path)
    assert "- `*` is a star" in update_page.update(old, tmp_path)


def test_pins_stand_twice_and_are_exact():
    assert update_constraints.problems() == []


def test_pins_cover_every_dependency_that_is_named():
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text())
    library = tomllib.loads((LIBRARY / "pyproject.toml").read_text())["project"]
    named = [*library["dependencies"], *workspace["dependency-groups"]["dev"]]
    named += [d for extra in library["optional-dependencies"].values() for d in extra]
    pinned = {
        pin.split("==")[0]
        for pin in update_constraints.pins_of_constraints((ROOT / "constraints.txt").read_text())
    }
    for dependency in named:
        name = re.match(r"[A-Za-z0-9._-]+", dependency)
        assert name is not None
        assert name[0].lower().replace("_", "-") in pinned | OWN, dependency


def test_nothing_brings_in_accelerator_builds():
    pins = (ROOT / "constraints.txt").read_text()
    assert re.findall(r"^(torch|triton|nvidia-[\w-]+|jax-cuda[\w-]+)==", pins, re.MULTILINE) == []


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda pyproject, constraints: (pyproject, constraints + "zzz==1\n"), "differ"),
        (
            lambda pyproject, constraints: (
                pyproject.replace('"absl-py==', '"absl-py>='),
                constraints,
            ),
            "not an exact",
        ),
        (
            lambda pyproject, constraints: (
                pyproject,
                re.sub(r"(?m)^numpy==.*\n", "", constraints),
            ),
            "differ",
        ),
    ],
)
def test_the_check_of_the_pins_can_fail(tmp_path, damage, problem):
    texts = damage((ROOT / "pyproject.toml").read_text(), (ROOT / "constraints.txt").read_text())
    for name, text in zip(("pyproject.toml", "constraints.txt"), texts, strict=True):
        (tmp_path / name).write_text(text)
    assert any(problem in found for found in update_constraints.problems(tmp_path))


def test_markers_of_the_lock_become_short():
    both = [f"python_full_version < '3.12' and sys_platform == '{p}'" for p in ("linux", "darwin")]
    assert update_constraints.join_markers(both) == "python_full_version < '3.12'"
    middle = [f"python_full_version == '{v}.*'" for v in ("3.12", "3.13")]
    assert (
        update_constraints.join_markers(middle)
        == "python_full_version >= '3.12' and python_full_version < '3.14'"
    )
    assert update_constraints.join_markers(["python_full_version >= '3.11'"]) == ""
    assert update_constraints.join_markers(both[:1]) == f"({both[0].replace(chr(39), chr(34))})"


def test_pins_of_a_lock():
    lock = {
        "package": [
            {"name": "headrace", "version": "0.1.0", "source": {"editable": "lib/headrace"}},
            {"name": "b", "version": "2", "source": {"registry": "x"}},
            {
                "name": "a",
                "version": "1",
                "source": {"registry": "x"},
                "resolution-markers": ["python_version < '3.12'"],
            },
        ]
    }
    assert update_constraints.pins_of_lock(lock) == ["a==1 ; python_full_version < '3.12'", "b==2"]


def test_lock_files_are_not_committed():
    assert {"uv.lock", "pylock.toml"} <= set((ROOT / ".gitignore").read_text().split())
    assert [p.name for p in committed_files() if p.name in ("uv.lock", "pylock.toml")] == []


def test_committed_files_name_no_path_of_this_machine():
    here = str(ROOT)
    home = os.path.expanduser("~")
    assert len(here) > 1
    for path in committed_files():
        text = path.read_text(errors="replace")
        assert f"{here}/" not in text, path
        assert home == "/" or f"{home}/" not in text, path


def test_committed_files_name_no_package_index():
    hosts = [
        ".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"))
    ]
    for path in committed_files():
        text = path.read_text(errors="replace")
        assert not [host for host in hosts if host in text], path


def test_the_licence_goes_with_the_package():
    licence = (ROOT / "LICENSE").read_text()
    assert "Apache License" in licence
    assert "END OF TERMS AND CONDITIONS" in licence
    assert licence == (LIBRARY / "LICENSE").read_text()
    assert (
        tomllib.loads((LIBRARY / "pyproject.toml").read_text())["project"]["license"]
        == "Apache-2.0"
    )


def test_the_changelog_has_the_version():
    version = headrace.__version__
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_citation_has_the_version_and_the_licence():
    citation = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {headrace.__version__}" in citation
    for package in sorted((ROOT / "lib").glob("headrace-*/pyproject.toml")):
        project = tomllib.loads(package.read_text())["project"]
        assert project["version"] == headrace.__version__, package
        assert f"headrace=={headrace.__version__}" in project["dependencies"], package
    assert "license: Apache-2.0" in citation


def test_the_sdist_holds_what_its_tests_read():
    targets = tomllib.loads((LIBRARY / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]
    included = targets["sdist"]["force-include"]
    assert {"tests", "docs", "conftest.py", "pytest.toml"} <= set(included.values())
    for source, target in included.items():
        assert (LIBRARY / source).resolve() == ROOT / target
        assert (ROOT / target).exists()


def test_ci_runs_what_the_readme_says():
    readme = (ROOT / "README.md").read_text()
    ci = (ROOT / ".ci" / "run").read_text()
    for command in COMMANDS:
        assert f"```bash\n{command}\n```" in readme
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    for part in (
        "python3 -m pip install -qU --target .uv uv",
        "run pytest #",
        "run -q --no-dev headrace demo",
    ):
        assert part in ci


def headings(document: Path) -> set[str]:
    """The names by which links reach the headings of a page."""
    prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    titles = re.sub(
        r"\[([^]]*)\]\([^)]*\)", r"\1", "\n".join(re.findall(r"^#+ (.*)$", prose, re.MULTILINE))
    )
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        for title in titles.splitlines()
    }


DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
DOCUMENTS += sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / document).read_text()):
        if not link.startswith("https://"):
            name, _, heading = link.partition("#")
            target = (ROOT / document).parent / name if name else ROOT / document
            assert target.exists(), link
            assert not heading or target.suffix != ".md" or heading in headings(target), link


def test_the_examples_of_the_readme_run(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for name, text in (
        ("code", "def f(x):\n    return x\n"),
        ("docs", "Water runs to the wheel. "),
    ):
        (tmp_path / "texts" / name).mkdir(parents=True)
        (tmp_path / "texts" / name / "one.txt").write_text(text * 500)
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks[0], "README.md", "exec"), {})
    lines = capsys.readouterr().out.strip().splitlines()
    assert [line.split(" ", 1)[0] for line in lines] == ["0", "1", "2"]
    assert all("(32, 128)" in line for line in lines)
    components = "{code: {cache: caches/code}, docs: {cache: caches/docs, weight: 2}}"
    Path("run.yaml").write_text(f"seq_len: 128\nbatch_size: 16\ncomponents: {components}\n")
    names: dict[str, object] = {}
    exec(compile(blocks[1], "README.md", "exec"), names)
    assert getattr(names["state"], "step", None) == 1200


@pytest.mark.slow
def test_the_commands_of_the_readme_train(tmp_path, monkeypatch):
    """From a folder of text to a run that is killed, goes on, and has its report."""
    block = next(
        b
        for b in re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        if "init" in b
    )
    install, *commands = block.strip().splitlines()
    assert "pip install -c constraints.txt" in install
    assert len(commands) == 2
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name, text in (
        ("code", "def f(x):\n    return x + {}\n"),
        ("docs", "Water runs to wheel {}. "),
    ):
        (tmp_path / "texts" / name).mkdir(parents=True)
        (tmp_path / "texts" / name / "one.txt").write_text(
            "".join(text.format(k) for k in range(8_000))
        )
    subprocess.run(["bash", "-c", commands[0]], check=True)
    train = commands[1].replace("python", "exec python")  # the process that a signal is sent to
    with subprocess.Popen(["bash", "-c", train], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step     60"):
                process.kill()
    again = subprocess.run(["bash", "-c", commands[1]], check=True, capture_output=True, text=True)
    assert "resumes from step 50, runs/1/checkpoints/50" in again.stdout
    assert (tmp_path / "first" / "runs" / "1" / "report.html").stat().st_size > 10_000


def test_readme_shows_only_commands_that_exist():
    readme = (ROOT / "README.md").read_text() + (LIBRARY / "README.md").read_text()
    commands = sorted(set(re.findall(r"headrace (build|inspect|simulate|demo)\b", readme)))
    helped = subprocess.run(
        [Path(sys.executable).parent / "headrace", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    for name in commands:
        assert name in helped.stdout, helped.stderr


def test_tables_of_benches_fit_80_columns_and_break_no_word(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "bench"))
    print_table = importlib.import_module("_common").print_table
    records = (json.loads(path.read_text()) for path in (ROOT / "docs" / "bench").glob("*.json"))
    tables = [table for record in records for table in record["tables"]]
    assert len(tables) > 30
    for table in tables:
        print_table(Console(width=80), table["title"], table["columns"], table["rows"])
        printed = capsys.readouterr().out
        assert max(map(len, printed.splitlines())) <= 80
        cells = [cell for row in table["rows"] for cell in row if isinstance(cell, str)]
        words = re.findall(r"[A-Za-z]{3,}", " ".join([*table["columns"], *cells]))
        assert [word for word in words if word not in printed] == []
