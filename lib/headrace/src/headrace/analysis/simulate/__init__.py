"""What a run will read, on any number of hosts, before it is started.

The order is a pure function, so nothing is guessed: steps are planned as the loader plans them, and
for each host the loader's own caching rule (order/residency.py) is replayed, so the block fetches
equal the loader's exactly. A run within the row budget is replayed whole, through changes of batch
size and row length; a longer one is sampled in windows of consecutive steps, one for each stretch
of equal batches. Of very many hosts whose memory does not hold all they use, evenly spread ones are
replayed. The result tells which applies. No token is read: ledgers are enough, or just the sizes of
sources that do not exist yet (``virtual_cache``).

Price: about 2 us per row of the steps examined and, if memory is short, 50 us per step and host.
"""
