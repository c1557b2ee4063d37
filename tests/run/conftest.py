"""Jobs of several hosts on one machine."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.testing.servers import free_port

StartHosts = Callable[..., list[subprocess.Popen[str]]]


@pytest.fixture
def start_hosts() -> StartHosts:
    """Starts a program as each of several hosts of one job, with four devices in all. It gets its
    folder, the coordinator's address, the number of hosts, its own, and what is added.
    """

    def start(program: Path, root: Path, hosts: int, *added: int, stderr: int = subprocess.PIPE):
        address = f"localhost:{free_port()}"
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={4 // hosts}",
        }
        return [
            subprocess.Popen(
                [sys.executable, program, root, address, *map(str, (hosts, number, *added))],
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
            for number in range(hosts)
        ]

    return start
