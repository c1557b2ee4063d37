"""Trees of real sockets between threads: nobody goes on before all are there, and an end is
noticed.
"""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.feed import host_links
from headrace.feed.host_links import HostLinks, NeighbourGoneError, family_of, own_address


@given(st.sets(st.integers(0, 2000), min_size=1, max_size=600).map(sorted), st.integers(1, 20))
def test_families_agree_and_reach_all(processes, arity):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host_links, "ARITY", arity)
        families = {process: family_of(processes, process) for process in processes}
    children = [child for _, below in families.values() for child in below]
    assert sorted(children) == processes[1:]  # everybody but the first, once
    assert families[processes[0]][0] is None
    for process, (above, below) in families.items():
        assert len(below) <= arity
        assert above is None or process in families[above][1]
        assert above is None or above < process  # so that every way up ends at the first


def connected(processes):
    links = {process: HostLinks(processes, process) for process in processes}
    invitations = {process: each.listen("127.0.0.1") for process, each in links.items()}
    with ThreadPoolExecutor(len(processes)) as pool:
        list(pool.map(lambda each: each.connect(invitations.get(each.above)), links.values()))
    return links


@pytest.mark.parametrize("arity", [1, 2, 16])
def test_nobody_goes_on_before_all_are_there(monkeypatch, arity):
    monkeypatch.setattr(host_links, "ARITY", arity)
    links = connected(range(0, 12, 2))
    lock = threading.Lock()
    arrived = dict.fromkeys(range(0, 12, 2), 0)
    early = []

    def run(process):
        for number in range(1, 30):
            with lock:
                arrived[process] = number
            links[process].begin()
            while not links[process].meet(0.001):
                pass
            with lock:
                early.extend(other for other, last in arrived.items() if last < number)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, links))
    assert early == []
    assert set(arrived.values()) == {29}
    for each in links.values():
        each.close()


def test_who_is_late_is_waited_for_and_who_ends_is_noticed():
    links = connected([0, 1, 2])
    links[0].begin()
    links[1].begin()
    assert not links[0].meet(0.01)
    assert not links[1].meet(0.01)
    links[2].close()
    with pytest.raises(NeighbourGoneError) as gone:
        links[0].meet(10)
    assert gone.value.process == 2
    assert not links[1].meet(0.01)  # not its neighbour
    links[0].close()
    with pytest.raises(NeighbourGoneError):
        links[1].meet(10)
    links[1].close()


def test_strangers_are_turned_away():
    parent = HostLinks([0, 1], 0)
    child = HostLinks([0, 1], 1)
    invitation = parent.listen("127.0.0.1")
    address, port, token = invitation.split()
    strangers = [socket.create_connection((address, int(port))) for _ in range(3)]
    strangers[0].sendall(bytes(20))
    strangers[1].sendall(bytes.fromhex(token) + (7).to_bytes(4, "big"))  # no child of it
    strangers[2].close()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: each[0].connect(each[1]), [(parent, None), (child, invitation)]))
    assert set(parent._neighbours) == {1}
    assert strangers[1].recv(1) == b""
    for each in (parent, child, *strangers):
        each.close()


def test_a_host_that_does_not_connect_is_an_error(monkeypatch):
    monkeypatch.setattr(host_links, "_CONNECT_S", 0.05)
    parent = HostLinks([0, 1], 0)
    invitation = parent.listen("127.0.0.1")
    with pytest.raises(OSError, match=r"did not connect|timed out"):
        parent.connect(None)
    parent.close()
    with pytest.raises(OSError, match=r"refused|timed out"):
        HostLinks([0, 1], 1).connect(invitation)


def test_addresses():
    assert own_address(None) == "127.0.0.1"
    assert own_address("127.0.0.1:8476") == "127.0.0.1"
    assert own_address("localhost:8476") in ("127.0.0.1", "::1")
