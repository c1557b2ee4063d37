"""The report of a run that goes on: served on loopback, to this machine only, with what was written
since.
"""

import http.client
import json
import threading
import urllib.request
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from headrace.errors import ConfigError
from headrace.report import page as live_module
from headrace.report.facts import gather
from headrace.report.page import LiveReport


@contextmanager
def serving(facts, **options):
    report = LiveReport(facts, **options)
    thread = threading.Thread(target=report.serve)
    thread.start()
    try:
        yield report
    finally:
        report.close()
        thread.join()


def get(report, path="", host=None):
    where = urlsplit(report.url)
    connection = http.client.HTTPConnection(where.hostname, where.port)
    try:
        connection.request("GET", f"/{path}", headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_page_and_state(run_folder):
    with serving(gather(str(run_folder)), every_s=0.5) as report:
        assert report.url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(report.url) as answer:
            page = answer.read().decode()
            assert answer.headers["Cache-Control"] == "no-store"
        assert 'data-live="0.5"' in page
        assert "connect-src &#x27;self&#x27;" in page or "connect-src 'self'" in page
        status, state = get(report, "state")
        assert status == 200
        sections = {s["id"]: s for s in json.loads(state)["sections"]}
        assert all(f'id="{part["id"]}"' in page for s in sections.values() for part in s["parts"])
        assert get(report, "nothing")[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8473", ""])
def test_only_requests_that_name_this_machine_are_answered(run_folder, host):
    with serving(gather(str(run_folder))) as report:
        assert get(report, "state", host=host)[0] == 403
        assert get(report, "state", host="localhost:1")[0] == 200


def test_what_is_written_meanwhile_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(live_module, "_FRESH_S", 0.0)
    monkeypatch.setattr(live_module, "_REST", 0)
    folder = tmp_path / "run"
    with serving(gather(str(folder), must_exist=False)) as report:
        assert "There are no measurements yet" in get(report, "state")[1]
        (folder / "stats").mkdir(parents=True)
        start = {"kind": "start", "version": 1, "host": 0, "hosts": 1, "time": 0.0, "config": None}
        stats = [
            {"kind": "stats", "step": s, "time": s, "stats": {"batches": s, "bytes_read": 2 * s}}
            for s in (10, 20)
        ]
        lines = "".join(json.dumps(line) + "\n" for line in (start, *stats))
        (folder / "stats" / "host-00000.jsonl").write_text(lines)
        state = json.loads(get(report, "state")[1])
        figures = next(s for s in state["sections"] if s["id"] == "reads")["figures"]
        assert figures["chart-bytes"]["series"][0]["x"] == [10, 20]


def test_a_store_that_fails_for_once_leaves_the_last_figures(run_folder, monkeypatch):
    monkeypatch.setattr(live_module, "_FRESH_S", 0.0)
    monkeypatch.setattr(live_module, "_REST", 0)
    facts = gather(str(run_folder))

    def refuse(folder):
        raise OSError("away")

    monkeypatch.setattr("headrace.report.facts.read_records", refuse)
    with serving(facts) as report:
        assert get(report, "state")[0] == 200
        assert report.facts().records.last_step == 49


def test_a_port_that_is_taken_is_refused(run_folder):
    facts = gather(str(run_folder))
    with serving(facts) as report, pytest.raises(ConfigError, match="--port 0"):
        LiveReport(facts, port=urlsplit(report.url).port)
