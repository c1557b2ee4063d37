"""The error tree: messages say field, value and cure; errors survive a process border."""

import copy
import inspect
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import HeadraceError, errors
from headrace.errors import (
    ConfigError,
    IndexOutOfRangeError,
    ReadError,
    check_at_least,
    check_choice,
    check_not_negative,
    check_whole,
    did_you_mean,
)

CLASSES = [
    c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__
]


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
@pytest.mark.parametrize(
    "clone", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))], ids=["copy", "pickle"]
)
def test_errors_can_be_copied_and_pickled(cls, clone):
    error = cls("is wrong", field="docs", value=[1, 2], cure="Write 3.")
    again = clone(error)
    assert type(again) is cls
    assert str(again) == str(error) == "docs = [1, 2]: is wrong. Write 3."
    assert (again.problem, again.field, again.value, again.cure) == (
        "is wrong",
        "docs",
        [1, 2],
        "Write 3.",
    )


@pytest.mark.parametrize(
    ("name", "known", "text"),
    [
        ("seqlen", ["seq_len", "shuffle"], "Did you mean 'seq_len'?"),
        ("zzz", ["b", "a"], "Known names: 'a', 'b'."),
        ("zzz", [], "There are none."),
        (
            "weight_1",
            ["weight_2", "weight_3", "weight_4"],
            "Did you mean 'weight_4' or 'weight_3'?",
        ),
    ],
)
def test_did_you_mean(name, known, text):
    assert did_you_mean(name, known) == text


def test_did_you_mean_stays_short():
    assert did_you_mean("zzz", [f"field_{i}" for i in range(100)]).count("field_") == 12


@given(value=st.none() | st.integers(-5, 5) | st.floats(-5, 5), least=st.integers(-5, 5))
def test_bounds_refuse_what_lies_below_them(value, least):
    for check, bound in (
        (lambda: check_at_least("n", value, least), least),
        (lambda: check_not_negative("n", value), 0),
    ):
        if value is None or value >= bound:
            check()
        else:
            with pytest.raises(ConfigError, match=rf"n = {value}: must "):
                check()


def test_nan_is_not_above_zero():
    with pytest.raises(ConfigError, match="must not be negative"):
        check_not_negative("n", float("nan"))


@pytest.mark.parametrize(
    ("value", "whole"), [(None, True), (3, True), (np.int64(3), True), (True, False), (3.0, False)]
)
def test_whole_numbers_are_integers(value, whole):
    if whole:
        check_whole("n", value)
    else:
        with pytest.raises(ConfigError, match=r"must be a whole number\. Give an int"):
            check_whole("n", value)


def test_a_choice_that_is_none_names_the_nearest():
    check_choice("engine", "pool", ["pool", "ray"])
    with pytest.raises(ConfigError, match=r"engine = 'pol': is no engine\. Did you mean 'pool'\?"):
        check_choice("engine", "pol", ["pool", "ray"], "is no engine")


@pytest.mark.parametrize(
    ("pip", "uv", "on_path", "command"),
    [
        (True, None, False, "pip install 'headrace[gcs]'"),
        (True, ".uv/bin/uv", False, "pip install 'headrace[gcs]'"),
        (False, ".uv/bin/uv", True, "uv pip install 'headrace[gcs]'"),
        (False, ".uv/bin/uv", False, ".uv/bin/uv pip install 'headrace[gcs]'"),
        (False, None, False, "uv pip install 'headrace[gcs]'"),
    ],
)
def test_the_command_that_installs_is_that_of_the_environment(
    monkeypatch, tmp_path, pip, uv, on_path, command
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(errors.importlib.util, "find_spec", lambda name: object() if pip else None)
    monkeypatch.setattr(errors.shutil, "which", lambda name: "/bin/uv" if on_path else None)
    monkeypatch.delenv("UV", raising=False)
    if uv is not None:
        monkeypatch.setenv("UV", str(tmp_path / uv))
    assert errors.install_command("headrace[gcs]") == command
