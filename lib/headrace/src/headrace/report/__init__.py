"""One page about a run's data: what was planned, what was measured, and whether data delays
training.

::

    from headrace.report import gather, write_report

    write_report(gather("runs/7"), "report.html")

The page needs no network, no server and no other file: ``charts.js`` draws its charts, and its
content policy blocks all requests. On the command line: ``headrace run report``.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
