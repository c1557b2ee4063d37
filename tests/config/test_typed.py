"""Configs that a program makes are held to the types of their fields, as those of YAML are."""

from typing import Any

import numpy as np
import pytest

from headrace import ComponentConfig, LmDataConfig
from headrace.errors import ConfigError
from headrace.pack import PackingConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seed": 1.0}, "seed = 1.0: is of the wrong type. Give a whole number."),
        ({"num_steps": True}, "num_steps = True: is of the wrong type. Give a whole number."),
        ({"seq_len": {0: "8"}}, "seq_len.0 = '8': is of the wrong type. Give a whole number."),
        (
            {"components": {"a": "x"}},
            "components.a = 'x': is of the wrong type. Give a ComponentConfig.",
        ),
        (
            {"components": {"a": ComponentConfig("x", packing=True)}},
            "components.a.packing = True: is of the wrong type",
        ),  # pyright: ignore
    ],
)
def test_wrong_types_are_named(fields: dict[str, Any], message):
    with pytest.raises(ConfigError) as error:
        LmDataConfig(**fields)
    assert str(error.value).startswith(message)


def test_numbers_of_numpy_are_taken():
    component: Any = ComponentConfig("x", weight=np.float32(2), packing=PackingConfig())  # pyright: ignore
    assert LmDataConfig({"a": component}, seq_len=np.int64(8), max_epochs=2).seq_len == 8  # pyright: ignore
