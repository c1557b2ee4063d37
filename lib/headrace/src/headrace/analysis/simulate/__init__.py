"""What a run will read, on any number of hosts, before it is started.

The order is a pure function, so nothing has to be guessed: the steps of a run are planned as the loader plans them, and
for each host the loader's own rule of what stays in memory (order/residency.py) is replayed, so that the block fetches
are those of the loader, to the block. A run within the row budget is replayed whole, through changes of batch size and
row length; a longer one is looked at through windows of consecutive steps, one for each stretch of equal batches; of
very many hosts whose memory does not hold all they use, evenly spread ones are replayed. The result says so. No token
is read: ledgers are enough, or just the sizes of sources that do not exist yet (``virtual_cache``).

Price: about 2 us a row of the steps that are looked at, and where memory is short 50 us a step of a host.
"""
