"""The error tree: messages say field, value and cure; errors survive a process border."""

import copy
import inspect
import pickle

import pytest

from headrace import errors
from headrace.errors import ConfigError, HeadraceError, IndexOutOfRangeError, ReadError, did_you_mean

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__]


def test_every_error_is_a_headrace_error_and_stands_in_the_drawing():
    assert len(CLASSES) >= 10
    for cls in CLASSES:
        assert issubclass(cls, HeadraceError)
        assert cls.__name__ in (errors.__doc__ or "")


def test_tree():
    assert issubclass(IndexOutOfRangeError, IndexError)
    assert issubclass(ReadError, HeadraceError)
    assert not issubclass(errors.CacheError, ConfigError)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({}, "must be positive"),
        ({"field": "seq_len"}, "seq_len: must be positive"),
        ({"value": 0}, "0: must be positive"),
        ({"field": "path", "value": None}, "path = None: must be positive"),
        ({"field": "a", "value": "x", "cure": "Give 1."}, "a = 'x': must be positive. Give 1."),
        ({"cure": "Give 1."}, "must be positive. Give 1."),
    ],
)
def test_message(keywords, message):
    assert str(HeadraceError("must be positive", **keywords)) == message


def test_one_full_stop_before_the_cure():
    assert str(HeadraceError("It broke.", cure="Try again.")) == "It broke. Try again."


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("clone", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))], ids=["copy", "pickle"])
def test_errors_can_be_copied_and_pickled(cls, clone):
    error = cls("is wrong", field="docs", value=[1, 2], cure="Write 3.")
    again = clone(error)
    assert type(again) is cls
    assert str(again) == str(error) == "docs = [1, 2]: is wrong. Write 3."
    assert (again.problem, again.field, again.value, again.cure) == ("is wrong", "docs", [1, 2], "Write 3.")


@pytest.mark.parametrize(
    ("name", "known", "text"),
    [
        ("seqlen", ["seq_len", "shuffle"], "Did you mean 'seq_len'?"),
        ("zzz", ["b", "a"], "Known names: 'a', 'b'."),
        ("zzz", [], "There are no known names."),
        ("weight_1", ["weight_2", "weight_3", "weight_4"], "Did you mean 'weight_4' or 'weight_3'?"),
    ],
)
def test_did_you_mean(name, known, text):
    assert did_you_mean(name, known) == text


def test_did_you_mean_stays_short():
    assert did_you_mean("zzz", [f"field_{i}" for i in range(100)]).count("field_") == 12
