"""``headrace cache inspect`` for a folder of rollouts: its run, the run's progress, and the
contents of each log.
"""

from __future__ import annotations

import json
from typing import Any

from rich.table import Table
from rich.text import Text

from headrace.cli.shown import facts_table, figures_table, say, terminal


def inspect_rollouts(folder: str, as_json: bool) -> bool:
    """Reads a folder of rollouts, compares it with its checksums, and prints its contents; False if
    it is none.
    """
    from headrace_posttrain.rollouts.log_segments import holds_rollouts

    if not holds_rollouts(folder):
        return False
    from headrace_posttrain.rollouts.store import RolloutStore  # brings jax

    facts = RolloutStore(folder).describe()
    if as_json:
        say(json.dumps(facts, ensure_ascii=False))
        return True
    console = terminal()
    identity = ", ".join(
        f"{name} {json.dumps(value)}" for name, value in sorted(facts["identity"].items())
    )
    console.print(Text(folder, "bold"))
    console.print(
        facts_table(
            {
                "run": identity or "not recorded",
                "steps": f"{facts['steps']:,}; the next is {facts['next_step']:,},"
                f" from position {facts['next_position']:,}",
                "groups": f"{facts['trained_groups']:,} trained on, {facts['dropped_groups']:,}"
                f" left out, {facts['pending_groups']:,} waiting for a step",
                "not used": f"{facts['refused_groups']:,} too old, {facts['duplicate_groups']:,}"
                " sampled twice",
                "deleted": f"groups of steps before {facts['forgotten_steps']:,}",
            }
        )
    )
    console.print(_logs_table(facts["logs"]))
    if facts["lost_groups"]:
        console.print(Text(f"{facts['lost_groups']:,} groups of past steps are lost", "bold red"))
    return True


def _logs_table(logs: dict[str, Any]) -> Table:
    table = figures_table("log", "records", "torn bytes", "fenced", "lost", "state")
    for name, log in logs.items():
        figures = (
            f"{log[key]:,}" for key in ("records", "torn_bytes", "fenced_records", "lost_records")
        )
        table.add_row(
            Text(name), *figures, "" if log["closed"] else "being written, or its writer was killed"
        )
    return table
