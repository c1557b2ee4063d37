"""headrace's batches as torch's ``IterableDataset``: with torch where it is installed, else against
the part of its interface that the adapter uses (torch is 0.7 GB, and no test of headrace's needs it
otherwise).
"""

import importlib
import importlib.util
import sys
import types
from typing import Any, Generic, TypeVar

import numpy as np
import pytest

from headrace.errors import ConfigError, PlanMismatchError
from headrace.feed import DataLoader

T = TypeVar("T")


class Worker:
    """What ``get_worker_info`` gives."""

    info = None


def stand_in():
    """Modules with the three names of torch's that the adapter uses."""

    class IterableDataset(Generic[T]): ...

    made: list[Any] = [types.ModuleType(n) for n in ("torch", "torch.utils", "torch.utils.data")]
    torch, utils, data = made
    torch.Tensor = np.ndarray
    torch.from_numpy = lambda values: values
    data.IterableDataset = IterableDataset
    data.get_worker_info = lambda: Worker.info
    torch.utils = utils
    utils.data = data
    return {"torch": torch, "torch.utils": utils, "torch.utils.data": data}


@pytest.fixture
def adapter(monkeypatch):
    """The adapter's module, and a loader as torch's ``DataLoader(batch_size=None)``."""
    if importlib.util.find_spec("torch"):
        from torch.utils.data import DataLoader as TorchLoader  # pyright: ignore[reportMissingImports]

        return importlib.import_module("headrace.adapters.torch"), lambda d: TorchLoader(
            d, batch_size=None
        )
    for name, module in stand_in().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "headrace.adapters.torch", raising=False)
    module = importlib.import_module("headrace.adapters.torch")
    monkeypatch.delitem(sys.modules, "headrace.adapters.torch")
    return module, iter


def test_batches_are_the_loaders_and_resume(adapter, mixture):
    module, torch_loader = adapter
    loader = DataLoader(mixture(num_steps=4))
    batches = module.TorchBatches(mixture(num_steps=4))
    state = None
    step = -1
    for step, batch in enumerate(torch_loader(batches)):
        wanted = loader.batch_at(step)
        for name, values in batch.items():
            assert np.array_equal(np.asarray(values), np.asarray(getattr(wanted, name))), name
        assert np.asarray(batch["labels"]).dtype == np.int64
        state = batches.state_dict() if step == 1 else state
    assert step == 3
    again = module.TorchBatches(mixture(num_steps=4))
    again.load_state_dict(state)
    found = [np.asarray(batch["tokens"]) for batch in torch_loader(again)]
    assert np.array_equal(found, [np.asarray(loader.batch_at(k).tokens) for k in (2, 3)])
    with pytest.raises(PlanMismatchError):
        module.TorchBatches(mixture(weight=5, num_steps=4)).load_state_dict(state)


def steps_of(passed):
    return [int(np.asarray(batch["tokens"]).sum()) for batch in passed]


def test_every_pass_has_all_batches(adapter, mixture):
    module, torch_loader = adapter
    batches = module.TorchBatches(mixture(num_steps=4))
    loader = torch_loader(batches) if torch_loader is not iter else batches
    first = steps_of(loader)
    assert len(first) == 4
    assert steps_of(loader) == first
    left = iter(loader)
    next(left)  # a pass that is left early
    assert steps_of(loader) == first


def test_a_state_counts_for_one_pass(adapter, mixture):
    module, _ = adapter
    batches = module.TorchBatches(mixture(num_steps=4))
    every = steps_of(batches)
    for step in range(5):
        passed = iter(batches)
        for _ in range(step):
            next(passed)
        state = batches.state_dict()
        assert state == passed.state_dict()
        again = module.TorchBatches(mixture(num_steps=4))
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert steps_of(again) == every[step:]
        assert steps_of(again) == every


def test_as_torchdata_restores_a_pass(adapter, mixture):
    # StatefulDataLoader restores the dataset, takes an iterator of it, restores that, and takes
    # another one if the saved pass was over. A worker does so with a copy of the dataset.
    module, _ = adapter
    batches = module.TorchBatches(mixture(num_steps=4))
    every = steps_of(batches)
    passed = iter(batches)
    assert steps_of([next(passed), next(passed)]) == every[:2]
    of_dataset = batches.state_dict()
    of_pass = passed.state_dict()
    again = module.TorchBatches(mixture(num_steps=4))
    again.load_state_dict(of_dataset)
    restored = iter(again)
    restored.load_state_dict(of_pass)
    assert steps_of(restored) == every[2:]
    ended = module.TorchBatches(mixture(num_steps=4))
    ended.load_state_dict(restored.state_dict())
    iter(ended)
    assert steps_of(iter(ended)) == every


def test_each_process_gets_its_share(adapter, mixture):
    module, torch_loader = adapter
    wanted = DataLoader(mixture()).batch_at(0).tokens
    shares = []
    for rank in range(4):
        found = iter(torch_loader(module.TorchBatches(mixture(), rank=rank, world=4)))
        shares.append(np.asarray(next(found)["tokens"]))
    assert np.array_equal(np.concatenate(shares), wanted)


def test_several_workers_are_refused(adapter, mixture, monkeypatch):
    module, _ = adapter
    monkeypatch.setattr(module, "get_worker_info", lambda: types.SimpleNamespace(num_workers=2))
    with pytest.raises(ConfigError, match="num_workers"):
        next(iter(module.TorchBatches(mixture())))


def test_without_torch_the_error_says_what_to_install(monkeypatch):
    import headrace.adapters

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "headrace.adapters.torch", raising=False)
    with pytest.raises(ConfigError, match="pip install torch"):
        headrace.adapters.TorchBatches  # noqa: B018
