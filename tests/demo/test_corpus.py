"""The demo's text: real, the same each time, within its cap, and there also where Python ships no
tests.
"""

import gzip
import itertools
import json
import os
import subprocess
import sys
import sysconfig

import pytest
from tokenizers import Tokenizer

from headrace.demo import corpus
from headrace.errors import SourceError

CAP = 300_000


@pytest.fixture(scope="module")
def sources():
    return corpus.standard_library(CAP)


def test_three_sources_within_the_cap_and_close_to_it(sources):
    assert set(sources) == {"code", "docs", "tests"}
    for source in sources.values():
        assert 0.8 * CAP < sum(len(d.text) for d in source.documents) <= CAP


def test_no_document_is_blank_and_names_are_unique_and_sorted(sources):
    for source in sources.values():
        names = [d.name for d in source.documents]
        assert all(d.text.strip() for d in source.documents)
        assert names == sorted(set(names))


def test_the_same_each_time(sources):
    assert corpus.standard_library(CAP) == sources


def test_no_document_is_in_two_sources(sources):
    code, docs, tests = (
        {d.text for d in sources[name].documents} for name in ("code", "docs", "tests")
    )
    assert len(code | docs | tests) == len(code) + len(docs) + len(tests)


def test_the_cap_takes_documents_from_all_over_the_library(sources):
    initials = {d.name[0] for d in sources["code"].documents}
    assert len(initials) > 10  # the first files in the order of names would begin with "_" and "a"


def test_docstrings_stand_under_qualified_names():
    text = '"""About the module."""\n\n\nclass A:\n    def f(self):\n        """What f does."""\n'
    (document,) = corpus._docstrings([corpus.Document("pkg/__init__.py", text)])
    assert document.name == "pkg"
    assert document.text == "pkg\n\nAbout the module.\n\npkg.A.f\n\nWhat f does.\n"


def test_a_file_of_another_grammar_has_no_docstrings():
    assert list(corpus._docstrings([corpus.Document("old.py", 'print "two"')])) == []


def test_a_library_without_tests_falls_back_to_installed_packages_and_says_so(
    tmp_path, monkeypatch
):
    (tmp_path / "module.py").write_text('"""A module."""\n')
    (tmp_path / "not_text.py").write_bytes(b"# \xff\xfe\n")
    (tmp_path / "blank.py").write_text("\n\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    sources = corpus.standard_library(CAP)
    assert [d.name for d in sources["code"].documents] == ["module.py"]
    assert "numpy" in sources["tests"].origin
    assert all(d.name.startswith("numpy/") for d in sources["tests"].documents)


def test_a_python_without_sources_is_an_error_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(SourceError, match="no Python source files"):
        corpus.standard_library(CAP)


def test_written_text_reads_back(tmp_path, sources):
    for name, source in sources.items():
        file = corpus.text_file(tmp_path, name)
        corpus.write_jsonl(source.documents, file)
        assert corpus.read_jsonl(file) == source.documents
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            assert json.loads(next(lines))["text"] == source.documents[0].text


def test_equal_documents_give_equal_bytes(tmp_path, sources):
    for name in ("a", "b"):
        corpus.write_jsonl(sources["docs"].documents, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_tokenizer_is_the_same_in_another_process(tmp_path, sources):
    texts = tmp_path / "text.jsonl.gz"
    corpus.write_jsonl(sources["docs"].documents, texts)
    script = (
        "import sys, pathlib; from headrace.demo.corpus import train_bpe;"
        "train_bpe([pathlib.Path(sys.argv[1])], pathlib.Path(sys.argv[2]), vocab_size=600)"
    )
    for number in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": number, "RAYON_NUM_THREADS": number}
        command = [sys.executable, "-c", script, str(texts), str(tmp_path / number)]
        subprocess.run(command, check=True, env=environment)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_the_tokenizer_has_the_size_asked_for_and_loses_nothing(tmp_path, sources):
    texts = tmp_path / "text.jsonl.gz"
    corpus.write_jsonl(sources["code"].documents, texts)
    corpus.train_bpe([texts], tmp_path / "tokenizer.json", vocab_size=700)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 700
    assert tokenizer.token_to_id(corpus.END_OF_TEXT) == 0
    for document in itertools.islice(sources["docs"].documents, 20):
        assert tokenizer.decode(tokenizer.encode(document.text).ids) == document.text
