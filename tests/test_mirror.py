"""The tests mirror the library: ``order/seeds.py`` has ``tests/order/test_seeds.py`` or ``test_seeds_<aspect>.py``.

What concerns a room as a whole is named after the room: ``tests/store/test_store_faults.py``.
"""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
LIBRARY = TESTS.parent / "lib" / "headrace" / "src" / "headrace"
WHOLE = {"docs", "examples", "experiments", "types"}  # with the files of this folder: the programme as a whole
COVERED = {  # modules without a file of their own, by the file that tests them through what uses them
    "analysis/check/test_plan.py": "analysis/check/sizes",
    "analysis/simulate/test_forecast.py": "analysis/simulate/looks analysis/simulate/replay",
    "batch/test_sft.py": "batch/masks",
    "batch/test_preference.py": "data/pairs",
    "cli/test_build.py": "cli/build_options ingest/choices",
    "cli/test_cli_commands.py": "__main__ cli/application cli/exits cli/options cli/panels",
    "cli/test_inspect.py": "cli/decoded cli/shown",
    "cli/test_inspect_leaves.py": "cli/inspect_show",
    "cli/test_where.py": "run/where",
    "config/test_lm_data.py": "config/component",
    "config/test_lm_data_packing.py": "pack/saved_plans",
    "data/test_dataset.py": "data/async_dataset",
    "data/test_documents.py": "data/filter_files",
    "data/test_row_tokens.py": "mix/measure",
    "data/test_token_seq_rows.py": "data/token_rows",
    "demo/test_checks.py": "demo/screen",
    "demo/test_demo.py": "cli/demo demo/run",
    "feed/test_feed_stalls.py": "stalls",
    "feed/test_loader_rollouts.py": "feed/async_reader",
    "feed/test_reader.py": "feed/gathering feed/plan feed/read_ahead feed/workers",
    "ingest/readers/test_readers.py": "ingest/readers/columnar ingest/readers/shards"
    " ingest/readers/datasets ingest/readers/streams",
    "ingest/test_documents.py": "ingest/records",
    "ingest/test_build.py": "ingest/engines",
    "ingest/test_kinds.py": "ingest/chat_template",
    "ingest/test_reshuffle.py": "ingest/shuffle_parts ingest/shuffle_plan",
    "ingest/test_source.py": "ingest/listing",
    "levanter/test_dataset.py": "levanter/leaving levanter/needs",
    "levanter/test_train_lm.py": "levanter/config",
    "levanter/translation/test_translate.py": "levanter/translation/fields levanter/translation/notes"
    " levanter/translation/sources",
    "mix/test_stages.py": "mix/plan_shares mix/stage_config",
    "order/braid/test_shuffle.py": "order/braid/spec",
    "pack/test_plan.py": "pack/items pack/spec",
    "report/test_page.py": "report/blocks report/charts report/facts report/numbers"
    " report/plan_sections report/run_sections",
    "rl/test_dataset.py": "rl/groups rl/selection rl/settings",
    "rl/test_feeder.py": "rl/sampler_calls rl/step_batch",
    "rl/test_store.py": "rl/rollout_index rl/rollout_records",
    "store/test_append_log.py": "store/log_segments",
    "store/levanter/test_levanter.py": "store/levanter/export store/levanter/layout",
    "store/test_array_forks.py": "store/pending",
    "store/test_verify.py": "store/array_files",
    "testing/test_servers.py": "store/http_messages",
    "testing/test_testing.py": "testing/caches",
}


def modules() -> set[str]:
    """All modules and packages of the library, as ``order/permutation`` and ``order``."""
    files = [path.relative_to(LIBRARY).with_suffix("") for path in LIBRARY.rglob("*.py")]
    return {path.parent.as_posix() if path.name == "__init__" else path.as_posix() for path in files} - {"."}


def files_of_tests() -> list[Path]:
    return [path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")]


def mirrors(test: Path, module: str) -> bool:
    """Whether a test file is that of a module, or of a room, by its name."""
    folder, _, name = module.rpartition("/")
    folder = module if (LIBRARY / module).is_dir() else folder
    return test.parent.as_posix() == (folder or ".") and f"{test.stem}_".startswith(f"test_{name.strip('_')}_")


def test_every_module_has_a_test_file_or_is_listed():
    listed = {name for names in COVERED.values() for name in names.split()}
    own = {m for m in modules() if any(mirrors(test, m) for test in files_of_tests())}
    rooms = {m for m in modules() if (LIBRARY / m).is_dir()}
    assert sorted(modules() - rooms - own - listed) == []
    assert sorted(listed & own) == [], "have a file of their own: take them off the list"
    assert sorted(listed - modules()) == [], "do not exist"
    assert len(COVERED) < 60
    for test in COVERED:
        assert (TESTS / test).exists(), test


def test_every_test_file_mirrors_something():
    whole = [t for t in files_of_tests() if t.parent == Path() or t.parts[0] in WHOLE]
    strangers = [str(t) for t in files_of_tests() if t not in whole and not any(mirrors(t, m) for m in modules())]
    assert sorted(strangers) == []


def test_names_are_told_apart():
    assert mirrors(Path("order/test_permutation.py"), "order/permutation")
    assert mirrors(Path("order/test_permutation_quality.py"), "order/permutation")
    assert mirrors(Path("store/test_store_faults.py"), "store")
    assert not mirrors(Path("order/test_permutations.py"), "order/permutation")
    assert not mirrors(Path("mix/test_permutation.py"), "order/permutation")
