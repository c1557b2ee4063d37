"""What a policy with constant weights refuses."""

import pytest

from headrace.errors import ConfigError
from headrace.mix.schedule import weight_from_config
from headrace_compat.constant_weights import constant_weights


def test_a_schedule_is_no_constant_weight():
    with pytest.raises(ConfigError, match="constant weights only") as e:
        constant_weights([weight_from_config({"step": {0: 1}}, "weights.docs")], "swrr")
    assert "weights.docs" in str(e.value)
