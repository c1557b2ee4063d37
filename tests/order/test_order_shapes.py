"""The shapes and dtypes in the annotations are true: checked at run time by beartype, in a process
of its own.

Only here: everywhere else wrong types are given on purpose, to see headrace's own errors.
"""

import subprocess
import sys

MODULES = ["seeds", "permutation", "order", "block_shuffle", "score_order"]

PROGRAM = f"""
from jaxtyping import TypeCheckError, install_import_hook
with install_import_hook({[f"headrace.order.{m}" for m in MODULES]}, "beartype.beartype"):
    import numpy as np
    from headrace.order.block_shuffle import BlockShuffle
    from headrace.order.block_shuffle import EraShuffle
    from headrace.order.permutation import Feistel, permute, permute_linear, rectangle
    from headrace.order.compose import Compose
    from headrace.order.order import Identity, Repeat, Slice, check_indices
    from headrace.order.seeds import derive, derive_keys, fold, mix64

def refused(call, *arguments):
    try:
        call(*arguments)
    except TypeCheckError:
        return True
    return False

for n in (1, 2, 17, 1000, 20_000):
    i, epoch = np.arange(n)[::-1].copy(), np.arange(n) % 3
    for perm_type in ("feistel", "linear"):
        base = Feistel(n, 0, perm_type)
        maps = [base, Identity(n), Slice(n, 0, n), Compose(base, Slice(n, 0, n)), Repeat(n, 2), Repeat(n)]
        maps += [BlockShuffle(n, io_block_size=3, window_blocks=2, seed=0, perm_type=perm_type)]
        maps += [EraShuffle(n, era_length=5, seed=0, perm_type=perm_type)]
        for m in maps:
            m(i), m(i[:0]), m.at(i, epoch), m.locality(i), m.locality(i, epoch)
    keys = derive_keys(0, "x", last=epoch)
    lengths = np.full(n, n)
    for function in (permute, permute_linear):
        function(i, n, 1), function(i, lengths, keys), function(i, n, keys), function(i, lengths, 2**64 - 1)
    rectangle(lengths.astype(np.uint64)), fold(keys, keys), mix64(keys), check_indices(i, n), check_indices([0], 1)
derive(3, "a", 4), derive_keys(3, last=np.arange(6).reshape(2, 3))

assert refused(permute, np.zeros(3, np.float32), 5, 1)
assert refused(permute, np.zeros((3, 2), np.int64), 5, 1)
assert refused(rectangle, np.zeros(3, np.int64))
assert refused(Feistel(5, 0), np.zeros(3))
assert refused(derive, "x")
print("all true")
"""


def test_annotated_shapes_and_dtypes_are_true():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.stdout == "all true\n", done.stderr
