"""The demo's folder: it takes only what is its own."""

import pytest

from headrace.demo.settings import MARKER, DemoFolder
from headrace.errors import ConfigError


def filled(root):
    folder = DemoFolder.claim(root)
    for path in (folder.text, folder.caches, folder.checkpoints):
        path.mkdir()
        (path / "file").write_text("x")
    for path in (folder.tokenizer, folder.config, folder.metrics, folder.summary, folder.report):
        path.write_text("x")
    return folder


def test_nothing_of_an_earlier_run_is_kept(tmp_path):
    folder = filled(tmp_path / "a")
    assert DemoFolder.claim(tmp_path / "a") == folder
    assert [path.name for path in folder.root.iterdir()] == [MARKER]


def test_files_of_others_are_kept(tmp_path):
    filled(tmp_path)
    (tmp_path / "notes").write_text("mine")
    DemoFolder.claim(tmp_path)
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_link_to_elsewhere_is_removed_and_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("mine")
    DemoFolder.claim(tmp_path / "a")
    (tmp_path / "a" / "caches").symlink_to(elsewhere)
    DemoFolder.claim(tmp_path / "a")
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
        DemoFolder.claim(root)
    assert caught.value.field == "output"


def test_an_empty_folder_will_do(tmp_path):
    DemoFolder.claim(tmp_path)
    assert (tmp_path / MARKER).exists()


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        DemoFolder.claim(tmp_path / "file" / "below")
