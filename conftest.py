"""What must be set before anything is imported: bytecode is kept, and tests and doctests run on eight CPU devices.
C files that have changed are compiled first.

jax itself is imported only by the tests that need it, so that the tests of the order start in under a second.
A test that starts a process of its own hands it these variables too; the process may override them.
"""

import atexit
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

if (
    sys.dont_write_bytecode
):  # each of the hundreds of processes that tests start would compile the sources of JAX anew
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.pycache_prefix = str(Path(__file__).with_name(".pytest_cache") / "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

_MEMORY = Path(
    "/dev/shm"
)  # caches are written thousands of times, and each waits for the disk that keeps its files
if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 8 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

_FLAGS = {  # eight devices; and programs run for a moment: compiled in a hurry
    "--xla_force_host_platform_device_count": 8,
    "--xla_backend_optimization_level": 0,
    "--xla_llvm_disable_expensive_passes": "true",
    "--xla_cpu_parallel_codegen_split_count": 1,
    "--xla_cpu_collective_call_terminate_timeout_seconds": 600,  # for all to meet; then XLA aborts the process
}
if importlib.metadata.version("jaxlib").startswith("0.10."):  # later ones refuse the flag
    _FLAGS["--xla_cpu_use_fusion_emitters"] = "false"  # half of the time of a compilation

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_given = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join(
    [_given, *(f"{k}={v}" for k, v in _FLAGS.items() if k not in _given)]
).strip()
if (
    "JAX_COMPILATION_CACHE_DIR" not in os.environ
):  # what one file, or a process that a test starts, compiled serves all
    _PROGRAMS = tempfile.mkdtemp(
        prefix="headrace-programs-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")
    )
    atexit.register(shutil.rmtree, _PROGRAMS, ignore_errors=True)
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": _PROGRAMS,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
_CORE = Path(__file__).with_name("lib") / "headrace"  # not there in an unpacked sdist
if "PYTEST_XDIST_WORKER" not in os.environ and _CORE.is_dir():
    # A changed C file is compiled before anything imports the library; once, not by each worker.
    sys.path.insert(0, str(_CORE))
    import build_native

    build_native.rebuild()
    del sys.path[0]
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing in the tests may reach out
os.environ.setdefault("MPLBACKEND", "Agg")


def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores, since a third of the time a test waits: for a process that it
    starts, a lease, a server. Each takes up to 3 GB in the end.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min((os.cpu_count() or 1) + 1, memory // (3 << 30)))


# Collecting a module for its doctests imports it. The development environment has no torch (0.7 GB);
# tests/adapters/test_torch.py runs the adapter against the part of torch's interface that it uses.
collect_ignore: list[str] = []
if importlib.util.find_spec("torch") is None:
    collect_ignore.append("lib/headrace/src/headrace/adapters/torch.py")
if (
    importlib.util.find_spec("levanter") is None
):  # it needs Python 3.12: .ci/run newest runs its tests there
    _SEAM = Path("lib/headrace-levanter/src/headrace_levanter")
    _NAMES = ("config", "dataset", "drop_in", "leaving", "loader", "recording", "train_lm")
    collect_ignore += [str(_SEAM / f"{name}.py") for name in _NAMES]
