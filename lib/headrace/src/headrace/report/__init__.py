"""One page about a run's data: what was planned, what was measured, and whether data delays
training. ``headrace run report`` writes it.

The page needs no network, no server and no other file: ``charts.js`` draws its charts, and its
content policy blocks all requests.
"""
