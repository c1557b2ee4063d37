"""Two runs on one page."""

import dataclasses
from html.parser import HTMLParser

import pytest

from headrace.config import ComponentConfig
from headrace.feed import RunLog
from headrace.report.blocks import Table
from headrace.report.comparison import compared, config_changes
from headrace.report.facts import gather
from headrace.report.page import render
from headrace.report.run_records import RunRecords
from headrace.run import open_run


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory, config):
    """A run of other weights and seed, without one of the sources, of which 30 steps are done."""
    web, _, chat = config.components
    changed = dataclasses.replace(
        config,
        components={
            web: ComponentConfig(config.components[web].cache, weight=1),
            chat: config.components[chat],
        },
        seed=5,
    )
    folder = tmp_path_factory.mktemp("report-run") / "run-8"
    with changed.loader() as loader, RunLog(loader, folder, config=changed, every=4) as log:
        open_run(str(folder), loader, 0)
        for step, _ in zip(range(30), loader.iter_from_step(0), strict=False):
            log(step, train={"loss": 2 / (step + 1)})
    return folder


@pytest.fixture(scope="session")
def pair(run_folder, other_folder):
    return gather(str(run_folder)), gather(str(other_folder))


def blocks(pair):
    return {section.name: section.blocks for section in compared(*pair)}


def test_the_figures_of_both_are_those_of_their_own_pages(pair):
    figures = {name: f for s in compared(*pair) for name, f in s.figures().items()}
    for title, facts in zip(("run-7", "run-8"), pair, strict=True):
        (line,) = (s for s in figures["chart-loss-0"]["series"] if s["name"].endswith(title))
        steps, values = facts.records.figures["train/loss"]
        assert line["x"] == steps.tolist()
        assert line["y"] == pytest.approx(values, rel=1e-5)
    (table,) = (block for block in blocks(pair)["mixture"] if isinstance(block, Table))
    assert [row[0] for row in table.rows] == list(pair[0].plan.mixture.names)
    assert all(len(row) == len(table.columns) == 7 for row in table.rows)
    assert [row[2] for row in table.rows].count("–") == 1  # of the source that one run has not


def test_each_field_that_differs_is_named_once_with_both_values(pair):
    changes = {change.path: change[1:] for change in config_changes(*pair)}
    assert changes["seed"] == ("not set", "5")
    assert changes["components.web.weight"] == ('{"linear": {"0": 3, "40": 1}}', "1")
    assert len(changes) == 3  # and the source that is gone
    assert config_changes(pair[0], pair[0]) == []


def test_a_run_without_a_plan_or_measurements_is_compared_all_the_same(pair):
    bare = dataclasses.replace(pair[1], plan=None, records=RunRecords())
    for two in ((pair[0], bare), (bare, pair[0]), (bare, bare)):
        assert render(two[0], other=two[1]).endswith("</html>\n")


def test_names_of_sources_are_text_here_too(pair):
    tags = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)
    parser.feed(render(pair[0], other=pair[1]))
    assert "img" not in tags
