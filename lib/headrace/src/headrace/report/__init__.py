"""One page that shows what a run's data was meant to be, what it is, and whether it delays training.

::

    from headrace.report import gather, write_report

    write_report(gather("runs/7"), "report.html")

The page needs no network, no server and no other file: ``charts.js`` draws its charts, and its content policy forbids
it to load anything. On the command line: ``headrace report``.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
