"""The demo's folder: it takes only what is its own, and keeps what would come out the same."""

import pytest

from headrace.demo.settings import MARKER, DemoFolder
from headrace.errors import ConfigError

RECIPE = {"version": 1, "vocab_size": 10}


def filled(root, recipe):
    folder = DemoFolder.claim(root, recipe)
    for path in (folder.text, folder.caches, folder.checkpoints):
        path.mkdir()
        (path / "file").write_text("x")
    for path in (folder.tokenizer, folder.config, folder.metrics, folder.summary, folder.report):
        path.write_text("x")
    return folder


def test_the_same_recipe_keeps_text_and_caches_but_no_results(tmp_path):
    folder = filled(tmp_path / "a", RECIPE)
    assert DemoFolder.claim(tmp_path / "a", dict(RECIPE)) == folder
    assert {path.name for path in folder.root.iterdir()} == {
        MARKER,
        "text",
        "caches",
        "tokenizer.json",
    }


def test_another_recipe_keeps_nothing(tmp_path):
    folder = filled(tmp_path, RECIPE)
    DemoFolder.claim(tmp_path, {**RECIPE, "vocab_size": 11})
    assert [path.name for path in folder.root.iterdir()] == [MARKER]


@pytest.mark.parametrize("cut", ["", "{", "{}"])
def test_a_marker_that_says_nothing_keeps_nothing(tmp_path, cut):
    folder = filled(tmp_path, RECIPE)
    (tmp_path / MARKER).write_text(cut)
    DemoFolder.claim(tmp_path, RECIPE)
    assert [path.name for path in folder.root.iterdir()] == [MARKER]


def test_files_of_others_are_kept(tmp_path):
    filled(tmp_path, RECIPE)
    (tmp_path / "notes").write_text("mine")
    DemoFolder.claim(tmp_path, {"version": 2})
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_link_to_elsewhere_is_removed_and_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("mine")
    DemoFolder.claim(tmp_path / "a", RECIPE)
    (tmp_path / "a" / "caches").symlink_to(elsewhere)
    DemoFolder.claim(tmp_path / "a", {"version": 2})
    assert (elsewhere / "file").read_text() == "mine"
    assert not (tmp_path / "a" / "caches").exists()


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_is_not_a_demo_folder_is_refused(tmp_path, what):
    root = tmp_path / "a"
    if what == "folder":
        root.mkdir()
        (root / "file").write_text("mine")
    else:
        root.write_text("mine")
    with pytest.raises(ConfigError, match="not a folder of an earlier demo") as caught:
        DemoFolder.claim(root, RECIPE)
    assert caught.value.field == "output"


def test_an_empty_folder_will_do(tmp_path):
    DemoFolder.claim(tmp_path, RECIPE)
    assert (tmp_path / MARKER).exists()


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        DemoFolder.claim(tmp_path / "file" / "below", RECIPE)
