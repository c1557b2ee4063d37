"""One page that shows what a run's data was meant to be, what it is, and whether it holds up training.

::

    from headrace.report import gather, write_report

    write_report(gather("runs/7"), "report.html")

The page needs no network, no server and no other file: plotly.js (5 MB, of ``pip install 'headrace[report]'``) is in
it, and its content policy forbids it to load anything. On the command line: ``headrace report``.
"""

from headrace.report.facts import Options, ReportFacts, gather
from headrace.report.page import render, write_report

__all__ = ["Options", "ReportFacts", "gather", "render", "write_report"]
