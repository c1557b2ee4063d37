"""The page as a document: complete, closed, and nothing in it but what we wrote. How it looks:
test_page_browser.py.
"""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from headrace import ComponentConfig, LmDataConfig, RunLog, load_config, open_run
from headrace.batch.loss import SourceLosses
from headrace.errors import CacheError, ConfigError
from headrace.mix import PlainRule
from headrace.report.blocks import Table
from headrace.report.charts import COLOURS, mixture_chart
from headrace.report.facts import SHOWN_ROWS, gather
from headrace.report.page import render, sections, write_report
from headrace.report.run_sections import verdicts
from headrace.run import MixtureLearner, RunLock
from headrace.testing import tiny_cache

NASTY = "</script><img src=x onerror=alert(1)>&<b>"  # of conftest.py: a source
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Outline(HTMLParser):
    """Elements, ids, links, text of scripts; fails on tags that do not match."""

    def __init__(self, page):
        super().__init__()
        self.open = []
        self.ids = []
        self.links = []
        self.scripts = []
        self.tags = []
        self.text = []
        self.policy = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        if "id" in given:
            self.ids.append(given["id"])
        self.links += [
            (tag, k, v) for k, v in attrs if k in ("src", "href", "srcset", "action", "data")
        ]
        assert not any(k.startswith("on") for k in given), given
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append([given.get("type"), ""])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1][1] += data
        elif self.open and self.open[-1] != "style":
            self.text.append(data)


@pytest.fixture(scope="session")
def facts(run_folder):
    return gather(str(run_folder))


@pytest.fixture(scope="session")
def outline(facts):
    return Outline(render(facts))


def test_it_loads_nothing(outline):
    assert {tag for tag, _, link in outline.links if not link.startswith("#")} == {
        "link"
    }  # the empty icon
    assert [link for tag, _, link in outline.links if tag == "link"] == ["data:,"]
    assert "default-src 'none'" in outline.policy
    assert "connect-src 'none'" in outline.policy


def test_its_policy_lets_its_own_scripts_run_and_no_others(outline):
    run = [text for kind, text in outline.scripts if kind is None]
    assert [text.partition("\n")[0] for text in run] == ['"use strict";'] * 2
    for text in run:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in outline.policy
    assert "unsafe-inline" not in re.search(r"script-src[^;]*", outline.policy)[0]


def test_contents_lead_to_every_section_and_ids_are_unique(facts, outline):
    assert len(outline.ids) == len(set(outline.ids))
    leads = [link.removeprefix("#") for tag, _, link in outline.links if tag == "a"]
    assert leads == [s.name for s in sections(facts)]
    assert set(leads) <= set(outline.ids)


def test_what_a_report_has_to_have_is_in_it(facts, outline):
    assert [s.name for s in sections(facts)] == [
        "summary",
        "course",
        "rows",
        "mixture",
        "order",
        "documents",
        "forecast",
        "program",
        "reads",
        "waiting",
        "stalls",
        "provenance",
        "amendments",
        "config",
    ]
    figures = json.loads(next(text for kind, text in outline.scripts if kind == "application/json"))
    assert set(figures) == {
        f"chart-{n}"
        for n in (
            "loss",
            "mixture",
            "epochs",
            "quality",
            "lengths",
            "fill",
            "fetches",
            "bytes",
            "waiting",
            "waits",
            "loader-time",
            "speed",
            "queue",
            "stalls",
            "own-0",
        )
    } - ({"chart-stalls"} if not facts.records.stalls else set())
    assert set(figures) <= set(outline.ids)
    text = " ".join(outline.text)
    assert facts.plan is not None
    assert facts.plan.fingerprint in text
    assert facts.lock.fingerprint == facts.plan.fingerprint
    assert all(source.cache in text for source in facts.plan.sources)


SERIES = {"name", "mark", "x", "y", "colour", "dash", "width", "group", "text", "legend", "hidden"}
AXIS = {"title", "format", "log", "zero", "range"}


def test_figures_have_what_charts_js_draws(facts):
    figures = [figure for section in sections(facts) for figure in section.figures().values()]
    assert len(figures) > 10
    for figure in figures:
        assert set(figure) <= {"series", "x", "y", "height", "legend", "rule"}
        for axis in (figure["x"], figure["y"]):
            assert {"title", "format"} <= set(axis) <= AXIS
            assert axis["format"] in ("share", "count", "number")
        for series in figure["series"]:
            assert {"name", "mark", "x", "y", "colour"} <= set(series) <= SERIES
            assert series["mark"] in ("line", "step", "area", "bar", "dots", "peaks")
            assert len(series["x"]) == len(series["y"])
            assert -1 <= series["colour"] < 10


def test_names_are_text(outline):
    assert "img" not in outline.tags
    assert NASTY in "".join(outline.text)
    figures = json.loads(next(text for kind, text in outline.scripts if kind == "application/json"))
    assert NASTY in {
        series["name"] for series in figures["chart-mixture"]["series"]
    }  # charts.js sets it as text


def test_figures_are_those_of_the_plan(facts):
    mixture = facts.plan.mixture
    figure = next(s for s in sections(facts) if s.name == "course").figures()["chart-mixture"]
    traces = {trace["name"]: trace for trace in figure["series"]}
    np.testing.assert_allclose(
        traces["web"]["y"], mixture.drawn[:, 0] / mixture.drawn.sum(axis=1), rtol=1e-5
    )
    np.testing.assert_allclose(
        traces["web, target"]["y"], mixture.target[:, 0] / mixture.target.sum(axis=1), rtol=1e-5
    )
    assert traces["web, target"]["group"] == traces["web"]["group"]
    assert facts.plan.plan.components[0].epochs == pytest.approx(
        mixture.tokens[:, 0].sum() / facts.plan.plan.components[0].row_tokens
    )


def test_measured_figures_are_those_of_the_run(facts):
    (host,) = facts.records.series
    assert facts.records.sessions == 2
    assert facts.records.last_step == 49
    # 17 batches up to the last record before step 20, and 30 from there on, if the loader is never
    # ahead
    assert host.total("examples_requested") >= 16 * (17 + 30)
    assert host.step.tolist()[-1] == 49


def test_a_config_alone_says_what_is_not_measured(config_file):
    facts = gather(str(config_file))
    text = " ".join(Outline(render(facts)).text)
    assert text.count("There are no measurements yet") == 3
    assert facts.plan.mixture.edge[-1] == 60


def test_caches_that_do_not_exist_are_planned(planned_file):
    facts = gather(str(planned_file))
    assert facts.plan.assumed_steps
    assert facts.plan.fingerprint is None
    text = " ".join(Outline(render(facts)).text)
    assert "not built yet" in text
    assert "no cache has been built yet" in text
    with pytest.raises((CacheError, ConfigError)):
        gather(str(planned_file), ["components.a.expected_tokens=null"])


def test_settings_steps_and_hosts_count(config_file):
    facts = gather(str(config_file), ["num_steps=7"], hosts=[1, 4])
    assert facts.plan.mixture.edge[-1] == 7
    assert [h.hosts for h in facts.plan.plan.unlimited.by_hosts] == [1, 4]


def test_a_run_whose_log_has_no_config(run_folder, config_file, tmp_path):
    bare = tmp_path / "bare"
    (bare / "stats").mkdir(parents=True)
    (bare / "lock.json").write_bytes((run_folder / "lock.json").read_bytes())
    for file in (run_folder / "stats").iterdir():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        text = "".join(
            json.dumps({k: None if k == "config" else v for k, v in r.items()}) + "\n"
            for r in lines
        )
        (bare / "stats" / file.name).write_text(text)
    plan = gather(str(bare)).plan  # of the config in the lock
    assert plan is not None
    lock = RunLock.load(str(bare))
    assert lock is not None
    assert plan.fingerprint == lock.fingerprint
    replace(lock, config=None, edited=None).save(str(bare))
    facts = gather(str(bare))
    assert facts.plan is None
    text = " ".join(Outline(render(facts)).text)
    assert "The run has no config: RunLog(loader, folder, config=config) records it" in text
    assert facts.lock.fingerprint in text
    assert NASTY in text  # sources, from the manifest


def test_a_run_with_a_function_and_without_a_config_shows_its_sources(config_file, tmp_path):
    run = open_run(tmp_path, load_config(str(config_file)), fn=itself)
    replace(run.lock, config=None, edited=None).save(str(tmp_path))
    facts = gather(str(tmp_path))
    assert facts.plan is None
    text = " ".join(Outline(render(facts)).text)
    assert "Mixtures" in text
    assert NASTY in text


def itself(batch):
    return batch


def test_a_config_whose_caches_are_gone_leaves_what_was_measured(run_folder, tmp_path):
    moved = tmp_path / "moved"
    (moved / "stats").mkdir(parents=True)
    text = (run_folder / "stats" / "host-00000.jsonl").read_text().replace("report-caches", "gone")
    (moved / "stats" / "host-00000.jsonl").write_text(text)
    facts = gather(str(moved))
    assert facts.plan is None
    assert "cannot be resolved from here" in facts.why_no_plan
    assert "chart-waits" in Outline(render(facts)).ids


def test_another_config_than_the_runs_is_said(run_folder, config_file):
    facts = gather(str(run_folder), ["seed=9"])
    assert "not the config of the run" in " ".join(Outline(render(facts)).text)
    amended = ["amendments=[{step: 50, weights: {web: 1, chat: 1}}]"]
    text = " ".join(Outline(render(gather(str(run_folder), amended))).text)
    assert "differ by an amendment from step 50" in text


def test_shares_that_were_learned_stand_beside_those_planned(tmp_path):
    components = {
        name: ComponentConfig(str(tmp_path / name), weight=weight)
        for name, weight in (("web", 3), ("code", 1))
    }
    for name in components:
        tiny_cache(tmp_path / name, documents=300)
    config = LmDataConfig(components, seq_len=16, batch_size=4, num_steps=100)
    to_code = PlainRule(lambda step, losses, shares: np.array([0.125, 0.875]))
    learner = MixtureLearner(open_run(str(tmp_path / "run"), config), to_code, every=10)
    for step in range(10, 50, 10):
        learner.observe(step, SourceLosses(np.array([2.0, 1.0]), np.ones(2)))
    learned_facts = gather(str(tmp_path / "run"))
    (section,) = (one for one in sections(learned_facts) if one.name == "amendments")
    mixtures, learned = (block for block in section.blocks[:2] if isinstance(block, Table))
    assert [row[0] for row in mixtures.rows] == ["0"]
    assert learned.caption == "Shares that a rule learned in 4 decisions"
    assert learned.rows == [["code", "25.0%", "87.5%"], ["web", "75.0%", "12.5%"]]


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        gather(str(tmp_path / "typo"))
    assert gather(str(tmp_path / "soon"), must_exist=False).records.sessions == 0


def test_only_a_report_is_written_over(facts, tmp_path):
    path = tmp_path / "report.html"
    size = write_report(facts, str(path))
    assert path.stat().st_size == size
    write_report(facts, str(path))
    path.write_text("<html>a page that somebody wrote</html>")
    with pytest.raises(ConfigError, match="not a headrace report"):
        write_report(facts, str(path))


@pytest.mark.parametrize("sources", [1, 20, 200])
def test_a_page_is_small_whatever_the_number_of_sources(tmp_path, sources):
    cache = tiny_cache(tmp_path / "cache", documents=200).path
    weights = [{"linear": {0: 1, 500: k + 1}} for k in range(sources)]
    components = {
        f"a-source-with-a-name-{k}": ComponentConfig(cache, weight=w) for k, w in enumerate(weights)
    }
    config = LmDataConfig(components, seq_len=16, batch_size=64, num_steps=1000)
    with config.loader() as loader, RunLog(loader, tmp_path / "run", config=config, every=1) as log:
        for step in range(60):
            log(step, train={"loss": 1.0 / (step + 1)})
    assert write_report(gather(str(tmp_path / "run")), str(tmp_path / "page.html")) < 1_000_000


def test_the_first_screen_answers_four_questions(facts):
    asked = {question: (level, verdict, note) for level, question, verdict, note in verdicts(facts)}
    assert list(asked) == [
        "Does data delay training?",
        "Is the mixture as asked?",
        "How far through each source?",
        "Is anything odd?",
    ]
    off = facts.plan.mixture.off_quota
    level, verdict, _ = asked["Is the mixture as asked?"]
    assert (level, verdict[:2]) == (("good", "Ye") if off.max() < 1 else ("warning", "No"))
    assert "step 50 of 60" in asked["How far through each source?"][2]
    waiting = replace(
        facts.records.series[0], seconds=np.full(facts.records.series[0].step.size, 1e-9)
    )
    slow = replace(facts, records=replace(facts.records, series=(waiting,)))
    assert verdicts(slow)[0][0] == "warning"
    assert verdicts(slow)[3][0] == "warning"
    folded = {s.name: s.as_it_should_be for s in sections(slow)}
    assert not folded["waiting"]


def test_rows_of_a_step_are_those_of_the_loader(facts, config):
    """Sources and counts, and the words of the first document, where a row begins with one."""
    section = next(s for s in sections(facts) if s.name == "rows")
    *tables, commands = [block for block in section.blocks if isinstance(block, Table)]
    steps = [int(row[0]) for row in commands.rows]
    assert [table.caption.partition(",")[0] for table in tables] == [f"Step {s}" for s in steps]
    names = list(config.components)
    with config.loader() as loader:
        for step, table in zip(steps, tables, strict=True):
            batch = loader.batch_at(step)
            counts = np.bincount(np.asarray(batch.source_id), minlength=len(names))
            for name, count in zip(names, counts.tolist(), strict=True):
                assert (f"{count} of {name}" in table.caption) == (count > 0)
            shown = {int(row[0]): row[1] for row in table.rows}
            assert len(shown) == SHOWN_ROWS
            for row, source in shown.items():
                assert names[int(batch.source_id[row])] == source


def test_rows_that_cannot_be_read_are_said_to_be(facts):
    def unreachable(step):
        raise OSError(f"the store is away at {step}")

    without = [replace(facts.plan, some_rows=None), replace(facts.plan, some_rows=unreachable)]
    for plan, said in zip(without, ["without its caches", "the store is away"], strict=True):
        assert said in render(replace(facts, plan=plan))


def test_epochs_so_far_and_the_next_are_those_of_the_order(facts):
    """Counted row by row, with the mixture's own quotas."""
    plan = facts.plan
    edge = plan.mixture.edge.tolist()
    for d, component in enumerate(plan.plan.components):
        for step in (0, edge[len(edge) // 2], edge[-1]):
            spans = edge.index(step)
            tokens = plan.mixture.tokens[:spans, d].sum()
            assert plan.passes_until(step)[d] == pytest.approx(tokens / component.row_tokens)
        repeat = plan.repeats_after(0)[d]
        if repeat is None:
            assert plan.passes_until(edge[-1])[d] <= 1
        else:
            assert plan.passes_until(repeat)[d] == pytest.approx(1)


def _perceived(colour):
    """A colour in OKLab, in which distances are those that people see."""
    channels = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    lab = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    return np.array(lab) @ np.cbrt(np.array(cones) @ linear)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_the_colours_of_neighbours_differ(facts, mode):
    style = re.search(r"<style>(.*?)</style>", render(facts), re.DOTALL)[1]
    pairs = re.findall(r"--c\d: light-dark\((#\w+), (#\w+)\)", style)
    colours = np.array([_perceived(pair[mode]) for pair in pairs])
    assert len(colours) == COLOURS
    apart = np.linalg.norm(colours[:, None] - colours, axis=2)
    following = np.arange(COLOURS)
    assert apart[following, (following + 1) % COLOURS].min() > 0.15
    assert (apart + np.eye(COLOURS)).min() > 0.08


def test_what_would_flatten_all_lines_is_hidden_until_it_is_asked_for(facts):
    mixture = facts.plan.mixture
    assert not any(series.get("hidden") for series in mixture_chart(mixture)["series"])
    of_first = {name: getattr(mixture, name)[:, :1] for name in ("drawn", "target", "tokens")}
    repeated = {name: np.repeat(values, 40, axis=1) for name, values in of_first.items()}
    figure = mixture_chart(replace(mixture, names=tuple(map(str, range(40))), **repeated))
    assert [series["name"] for series in figure["series"] if series.get("hidden")] == [
        "others",
        "others, target",
    ]
