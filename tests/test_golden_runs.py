"""Runs as the release wrote them down that tests/golden/make_runs.py was run on: whoever moves a
module, or rebuilds an object, changes no batch.

``tests/golden/runs/configs.json`` holds random configs; ``new_runs.json`` the fingerprint of each
one's run and digests of its batches; ``files.tar.gz`` the caches and lists that they name, and what
a run leaves on disk: pack plans, locks, anchors, a log, rollouts. What is read here is read by
the public names of headrace alone, so that moves do not break the check.
"""

import contextlib
import hashlib
import io
import json
import re
import sys
import tarfile
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

import headrace
import headrace.errors
import headrace.metrics
import headrace.run
import headrace_posttrain
from headrace.mix.quota_walk import Walk

GOLDEN = Path(__file__).parents[0] / "golden" / "runs"
ARRAYS = (
    "token_ids",
    "source_id",
    "log_probs",
    "rewards",
    "segment_lengths",
    "loss_mask",
    "weights",
    "group_ids",
    "policy_version",
    "token_mask",
)
"""What a batch holds."""
DERIVED = (
    "valid",
    "tokens",
    "labels",
    "label_mask",
    "token_weights",
    "position_ids",
    "segment_ids",
    "cu_seqlens",
    "segment_groups",
)
"""What follows from it."""
CALLS_SAVED = 5
"""A run that goes on from its anchor makes so many times fewer calls than one that counts up to the
step, at least.
"""


def read_golden(name: str) -> Any:
    path = GOLDEN / name
    return json.loads(path.read_text()) if path.exists() else {}


def unpack_files(folder: Path) -> None:
    """Unpacks the caches, the lists and what runs left on disk."""
    with tarfile.open(GOLDEN / "files.tar.gz") as archive:
        archive.extractall(folder, filter="data")


def digest_batch(batch: Any) -> str:
    """The SHA-256 of every array of a batch, those that it holds and those that it derives: names,
    dtypes, shapes and bytes.
    """
    host = jax.tree.map(np.asarray, batch)
    digest = hashlib.sha256(f"eos {host.eos_id} pairs {host.pairs}".encode())
    named = {name: getattr(host, name) for name in (*ARRAYS, *DERIVED)}
    named |= {f"extras.{name}": value for name, value in sorted((host.extras or {}).items())}
    for name, value in named.items():
        if value is not None:
            array = np.ascontiguousarray(value)
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


def open_loader(config: headrace.LmDataConfig) -> headrace.DataLoader:
    """The loader of a config on one device, whatever the number of devices is."""
    return config.loader(jax.sharding.Mesh(jax.devices()[:1], ("data",)))


def digest_validation(config: headrace.LmDataConfig) -> dict[str, list[Any]]:
    """Rows and digest of what each component holds out."""
    held_out: dict[str, list[Any]] = {}
    for name, dataset in config.validation_datasets().items():
        rows = len(dataset)
        held_out[name] = [rows, digest_batch(dataset.read(np.arange(rows)))]
    return held_out


def describe_run(config: headrace.LmDataConfig, steps: list[int]) -> dict[str, Any]:
    """All that the corpus keeps of a run."""
    loader = open_loader(config)
    return {
        "fingerprint": headrace.run.RunLock.of(loader).fingerprint,
        "num_steps": loader.num_steps,
        "batches": {str(step): digest_batch(loader.batch_at(step)) for step in steps},
        "validation": None if config.validation is None else digest_validation(config),
    }


def write_config(folder: Path, text: str) -> headrace.LmDataConfig:
    path = folder / "config.yaml"
    path.write_text(text)
    return headrace.load_config(str(path))


def run_command(arguments: list[str]) -> tuple[int, str]:
    """Runs a command of headrace in this process; gives its status and what it printed."""
    (command,) = entry_points(group="console_scripts", name="headrace")
    printed = io.StringIO()
    status = 0
    typed = sys.argv
    sys.argv = ["headrace", *arguments]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            command.load()()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0
    finally:
        sys.argv = typed
    return status, printed.getvalue()


def count_calls(act: Callable[[], object]) -> int:
    """Calls of functions of headrace that ``act`` makes in this thread; a step that compiled code
    walks counts as one.
    """
    home = str(Path(headrace.__file__).parent)
    calls = 0

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(home)
        if event == "call" and frame.f_code is Walk.walk.__code__:
            calls += frame.f_locals["steps"]

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


def count_rows(loader: headrace.DataLoader, step: int) -> list[int]:
    """Rows of each component before a step."""
    dataset: Any = loader.dataset.planned
    return dataset.at_step(step)[0].mixture.draws.starts_at(step).tolist()


def list_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of each file below a folder."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(p.relative_to(folder)): (p.stat().st_ino, p.stat().st_mtime_ns) for p in paths}


class Guess:
    """Completes a prompt with each of four digits; right is what the prompt ends with."""

    def sample_and_score(self, prompt: Any) -> headrace_posttrain.ScoredGroup:
        answers = [np.append(prompt.tokens, digit) for digit in range(4)]
        rewards = np.array([float(digit == prompt.tokens[-1]) for digit in range(4)])
        return headrace_posttrain.ScoredGroup(answers, rewards, prompt_len=prompt.tokens.size)


def open_rollouts(folder: str) -> headrace_posttrain.RLDataset:
    """The RL run whose rollouts lie in a folder."""
    prompts = [np.array([9, number % 5]) for number in range(16)]
    store = headrace_posttrain.RolloutStore(folder)
    settings = headrace_posttrain.RLSettings(
        seq_len=16, groups_per_batch=2, seed=3, advantages="slime"
    )
    return headrace_posttrain.RLDataset(prompts, Guess(), settings, store=store)


def change_config(text: str, path: list[Any], value: str | None) -> str:
    """A config with one value set, as YAML; without it, if there is no value."""
    config = yaml.safe_load(text)
    *parents, last = path
    target = config
    for name in parents:
        target = target[name]
    if value is None:
        del target[last]
    else:
        target[last] = yaml.safe_load(value)
    return yaml.safe_dump(config, sort_keys=False)


def was_packing(packing: dict[str, Any]) -> dict[str, Any]:
    """Fields of a packing that follow from the cache since, as they were filled in before."""
    filled = {"long": "split", "unit": 1}
    return {name: value for name, value in filled.items() if packing.get(name) is None}


def try_config(bases: dict[str, str], case: dict[str, Any]) -> dict[str, Any]:
    """Loads a config, resolves its stages and, of small ones, opens what it names: what is said
    where it is refused, or a digest of the whole config.
    """
    path = case.get("file", "tried.yaml")
    text = case.get("text")
    if "base" in case:
        base = bases[case["base"]]
        text = change_config(base, case["path"], case["value"]) if "path" in case else base
    if text is not None:
        Path(path).write_text(text)
    stage = "load_config"
    whole = ""
    try:
        config = headrace.load_config(path, case.get("settings", []))
        whole = config.to_yaml()
        stage = "resolved_stages"
        config.plan()
        stage = "loader"
        if case.get("base") != "full":
            open_loader(config)
    except headrace.HeadraceError as error:
        named = {"field": error.field, "value": repr(error.value), "cure": error.cure}
        return {"error": type(error).__name__, "stage": stage, "message": str(error), **named}
    except Exception as error:  # noqa: BLE001
        # what no one foresaw is no promise: that it fails is kept
        return {"unforeseen": type(error).__name__, "stage": stage}
    fields = yaml.safe_load(whole)
    assert fields.pop("last_batch") == "pad"  # what the library came to have since
    assert fields.pop("max_hosts") == 256
    if fields["tokenizer"]:
        assert fields["tokenizer"].pop("engine") == "auto"
    for component in fields["components"].values():
        if component.get("source"):
            assert component["source"].pop("max_record_bytes") == 1 << 30
            assert component["source"].pop("special_tokens_in_text") == "token"
        if packing := component.get("packing"):
            packing |= was_packing(packing)
    for amendment in fields["amendments"] or ():
        assert amendment.pop("caches") == {}
    return {"config": hashlib.sha256(_canonical(fields).encode()).hexdigest()}


def _canonical(value: Any) -> str:
    """A config as text, whatever the order of its fields; what is not set is left out."""
    if isinstance(value, dict):
        fields = sorted(
            (repr(name), _canonical(inner)) for name, inner in value.items() if inner is not None
        )
        return "{" + ", ".join(f"{name}: {inner}" for name, inner in fields) + "}"
    return "[" + ", ".join(map(_canonical, value)) + "]" if isinstance(value, list) else repr(value)


CORPUS = read_golden("configs.json")
ARTIFACTS = read_golden("artifacts.json")
CONFIGS: dict[str, str] = CORPUS.get("configs", {})
RUNS: dict[str, dict[str, Any]] = read_golden("new_runs.json").get("runs", {})


@pytest.fixture(scope="module")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden-runs")
    unpack_files(folder)
    return folder


@pytest.fixture(autouse=True)
def in_corpus_folder(corpus_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs name their caches by relative paths."""
    monkeypatch.chdir(corpus_folder)


def test_the_corpus_is_there_and_covers_every_feature():
    assert len(RUNS) >= 80
    assert [*RUNS] == [*CONFIGS]
    assert min(CORPUS["coverage"].values()) >= 4


def test_the_digest_covers_every_array_of_a_batch():
    fields = set(headrace.PackedBatch.__dataclass_fields__)
    ends = "document_ends"  # segments and labels follow from it, which the digest covers
    assert fields == {*ARRAYS, ends, "eos_id", "pairs", "extras"}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_loads_the_same_batches(name: str, tmp_path: Path):
    run = RUNS[name]
    config = write_config(tmp_path, CONFIGS[name])
    assert describe_run(config, [int(step) for step in run["batches"]]) == run


@pytest.mark.parametrize("name", [*RUNS][::10])
def test_a_loader_that_reads_ahead_gives_the_same_batches(name: str, tmp_path: Path):
    loader = open_loader(write_config(tmp_path, CONFIGS[name]))
    for step, digest in RUNS[name]["batches"].items():
        with loader.iter_from_step(int(step)) as batches:
            assert digest_batch(next(batches)) == digest


@pytest.mark.parametrize("name", [*RUNS][5::10])
def test_a_config_written_whole_is_the_same_config(name: str, tmp_path: Path):
    config = write_config(tmp_path, CONFIGS[name])
    assert write_config(tmp_path, config.to_yaml()) == config


@pytest.mark.parametrize("name", ARTIFACTS.get("plans", {}))
def test_a_saved_plan_is_used(name: str, tmp_path: Path):
    expected = ARTIFACTS["plans"][name]
    config = write_config(tmp_path, expected["config"])
    steps = [int(step) for step in expected["run"]["batches"]]
    files = list_files(Path("plans", name))
    assert len(files) >= 3
    assert describe_run(config, steps) == expected["run"]
    assert list_files(Path("plans", name)) == files


@pytest.mark.parametrize("name", ARTIFACTS.get("resumed", {}))
def test_a_run_that_was_begun_is_resumed(name: str, tmp_path: Path):
    """Its lock is the run's, its anchor gives the counts, and the batches are those that it
    had.
    """
    expected = ARTIFACTS["resumed"][name]
    config = write_config(tmp_path, expected["config"])
    files = list_files(Path("run_folders", name))
    loader = open_loader(config)
    manifest = headrace.open_run(f"run_folders/{name}", loader, expected["step"])
    assert manifest.fingerprint == expected["fingerprint"]
    assert list(manifest.history) == expected["history"]
    assert digest_batch(loader.batch_at(expected["step"])) == expected["batch"]
    assert list_files(Path("run_folders", name)) == files
    state = headrace.run.LoaderState.from_dict(expected["state"])
    assert manifest.state(expected["step"]) == state
    assert headrace.run.LoaderState.from_pytree(state.to_pytree()) == state


@pytest.mark.parametrize(
    "name", [n for n, r in ARTIFACTS.get("resumed", {}).items() if r["anchored"]]
)
def test_a_resumed_run_counts_from_its_anchor(name: str, tmp_path: Path):
    expected = ARTIFACTS["resumed"][name]
    step = expected["step"]
    config = write_config(tmp_path, expected["config"])
    anchored = open_loader(config)
    plain = open_loader(config)
    headrace.open_run(f"run_folders/{name}", anchored, step)
    open_loader(config).batch_at(0)  # what is loaded once a process is not counted
    calls_from_anchor = count_calls(lambda: anchored.batch_at(step))
    calls_from_start = count_calls(lambda: plain.batch_at(step))
    if name != "least":  # least_consumed draws thousands of rows with a few calls
        assert calls_from_anchor * CALLS_SAVED < calls_from_start
    assert digest_batch(plain.batch_at(step)) == expected["batch"]


@pytest.mark.parametrize("name", ARTIFACTS.get("amended", {}))
def test_a_run_is_amended_and_goes_on(name: str, tmp_path: Path):
    expected = ARTIFACTS["amended"][name]
    folder = tmp_path / "run"
    folder.mkdir()
    for file in Path("run_folders", expected["begun"]).iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    loader = open_loader(write_config(tmp_path, expected["config"]))
    with pytest.raises(headrace.errors.ConfigError) as refusal:
        headrace.open_run(str(folder), loader, expected["too_late"])
    assert str(refusal.value) == expected["refusal"]
    manifest = headrace.open_run(str(folder), loader, expected["step"])
    assert manifest.fingerprint == expected["fingerprint"]
    assert list(manifest.history) == expected["history"]
    assert digest_batch(loader.batch_at(expected["step"])) == expected["batch"]
    begun = open_loader(write_config(tmp_path, ARTIFACTS["resumed"][expected["begun"]]["config"]))
    headrace.open_run(f"run_folders/{expected['begun']}", begun, expected["step"])
    drawn, drawn_before = (count_rows(of, expected["step"]) for of in (loader, begun))
    assert drawn == drawn_before + [0] * (len(drawn) - len(drawn_before))


@pytest.mark.parametrize("name", ARTIFACTS.get("refused", {}))
def test_a_run_of_another_config_is_refused(name: str, tmp_path: Path):
    expected = ARTIFACTS["refused"][name]
    loader = open_loader(write_config(tmp_path, expected["config"]))
    with pytest.raises(headrace.errors.ConfigError) as refusal:
        headrace.open_run(f"run_folders/{expected['begun']}", loader, expected["step"])
    assert f"another config: {expected['refusal']}. Go back" in str(refusal.value)


def test_a_log_of_a_run_is_read():
    status, printed = run_command(["run", "report", "run_folders/logged", "--json", "--hosts", "1"])
    assert status == 0
    assert _measured(json.loads(printed)) == ARTIFACTS["report"]


def _measured(report: dict[str, Any]) -> dict[str, Any]:
    return {key: report[key] for key in ARTIFACTS["report"]}


def test_counters_of_a_loader_are_read():
    record = ARTIFACTS["loader_stats"]
    counters = headrace.metrics.LoaderStats.from_record(record["record"]).to_dict()
    assert json.loads(json.dumps(counters)) == record["flat"]


def test_rollouts_are_trained_on_where_the_run_stopped():
    expected = ARTIFACTS["rollouts"]
    dataset = open_rollouts("rollouts")
    for step, digest in expected.items():
        assert digest_batch(dataset.next_batch(int(step), policy_version=int(step))) == digest, step


@pytest.mark.parametrize("name", ARTIFACTS.get("caches", {}))
def test_a_cache_is_read(name: str):
    expected = ARTIFACTS["caches"][name]
    assert describe_cache(f"caches/{name}") == expected
    status, printed = run_command(["cache", "verify", f"caches/{name}"])
    assert status == 0, printed


def describe_cache(path: str) -> dict[str, Any]:
    """What the corpus keeps of a cache."""
    cache = headrace.open_cache(path)
    documents = [cache.document(number) for number in range(cache.num_documents)]
    tokens = np.concatenate(documents).astype("<i8")
    return {
        "fingerprint": cache.fingerprint,
        "documents": cache.num_documents,
        "tokens": cache.num_tokens,
        "parts": len(cache.parts),
        "vocab_size": cache.vocab_size,
        "leaves": sorted(cache.leaves),
        "digest": hashlib.sha256(tokens.tobytes()).hexdigest(),
    }


ERRORS = read_golden("config_errors.json")


def name_case(case: dict[str, Any]) -> str:
    """A short name of a case, for reports."""
    if "path" in case:
        return (
            f"{case['base']}-{'.'.join(map(str, case['path']))}-{str(case['value'])[:30].strip()}"
        )
    return str(case.get("settings") or case.get("text") or case.get("file") or "nothing")[:60]


WIDER = {
    ("components", "a", "cache"): ("null", "[caches/a]", "lists"),
    ("components", "a", "packing"): (
        "{unit: 2}",  # long documents are then dropped
        "{long: keep}",  # rows have room for what they keep
    ),
    ("shuffle",): ("{kind: block, strands: 3}",),
    ("components",): ("{a: caches/a}",),  # a cache may stand for its component
    ("components", "c"): ("1e9\n...\n",),
    ("components", "mask"): ("text\n...\n",),
}
"""Wrong values that are not refused since, or with more that could be given, or whose cure was
none.
"""
AMENDED = "knows no stages"
"""What ``least_consumed`` was refused for with amendments, which it takes since: unequal weights
are said there now.
"""
PACKED = "Keep one seq_len, or leave packing out"
"""What packed components were told whose ``seq_len`` changes, as it may since."""
REFUSED = [
    c
    for c in ERRORS.get("cases", [])
    if c.get("value") not in WIDER.get(tuple(c.get("path", ())), ())
    and not (
        "policy=least_consumed" in c.get("settings", ()) and AMENDED in c["outcome"]["message"]
    )
    and PACKED not in c["outcome"].get("message", "")
]


@pytest.mark.parametrize("case", REFUSED, ids=name_case)
def test_a_wrong_config_is_refused_at_the_same_place(case: dict[str, Any]):
    """The error's class, field and value; for words see config/errors_table.json and
    wrong_inputs.json.
    """
    made = try_config(ERRORS["bases"], case)
    before = case["outcome"]
    assert made.get("cure") or not before.get("cure")
    if (before.get("field"), before.get("value")) == (
        "validation",
        "None",
    ):  # it names the field within, and its value
        before = {**before, "field": "validation.one_in", "value": made["value"]}
    if before.get("field", "").startswith(
        "lengths"
    ):  # of an array that users do not see: the component is named since
        before = {**before, "field": made["field"], "value": made["value"]}
        packing = ("components.a.packing", "components.pairs.packing")
        assert made["field"] in (*packing, "components.pairs.packing.unit")
    if before.get("field", "").endswith(("stop_strategy", "row_order", "packing.algorithm")):
        # one of a few words: a number is named as it was written, and not as a text
        before = {**before, "value": re.sub(r"^'([0-9.-]+)'$", r"\1", before["value"])}
    words = ("message", "cure")
    assert {k: v for k, v in made.items() if k not in words} == {
        k: v for k, v in before.items() if k not in words
    }


CLI = read_golden("cli.json")


def list_commands(config: str, steps: list[int]) -> dict[str, list[str]]:
    """What is asked of a config, by the name of the question."""
    step = steps[len(steps) // 2]
    return {
        "check": ["config", "check", config, "--hosts", "1,2", "--json"],
        "show": ["config", "show", config, "--json"],
        "simulate": ["config", "simulate", config, "--hosts", "1,2", "--max-rows", "512", "--json"],
        "where": ["run", "where", config, "--step", str(step), "--json"],
        "cat": ["run", "cat", config, "--step", str(step), "--json"],
        "cat_late": ["run", "cat", config, "--step", str(steps[-1]), "--row", "0", "--json"],
    }


def ask_command(arguments: list[str]) -> dict[str, Any]:
    """Status of a command, and what it printed: as JSON, or as lines if it is none."""
    status, printed = run_command(arguments)
    lines = printed.splitlines()
    return {
        "status": status,
        "answer": json.loads(lines[-1]) if lines and lines[-1].startswith("{") else lines,
    }


@pytest.mark.parametrize("question", ["check", "show", "simulate", "where", "cat", "cat_late"])
@pytest.mark.parametrize("name", CLI)
def test_commands_answer_the_same(name: str, question: str, tmp_path: Path):
    Path("asked.yaml").write_text(write_config(tmp_path, CONFIGS[name]).to_yaml())
    steps = [int(step) for step in RUNS[name]["batches"]]
    assert ask_command(list_commands("asked.yaml", steps)[question]) == CLI[name][question]
