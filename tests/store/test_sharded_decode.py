"""What TensorStore encodes is decoded to the same values, in whole or in part; bytes that changed
never are.
"""

import itertools

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from headrace.store import requests
from headrace.store.sharded import Decoder

CRC = {"name": "crc32c"}
ZSTD = {"name": "zstd", "configuration": {"level": 1}}
numbers = itertools.count()


def bytes_codec(endian):
    return {"name": "bytes", "configuration": {"endian": endian}}


CODECS = {
    "plain": [bytes_codec("little"), CRC],
    "no checksum": [bytes_codec("little")],
    "big end first": [bytes_codec("big"), CRC],
    "zstd": [bytes_codec("little"), ZSTD, CRC],
}


def encoded(values, codecs):
    """The bytes of one chunk, as TensorStore writes them."""
    memory = {"driver": "memory", "path": f"{next(numbers)}/"}
    metadata = {
        "shape": list(values.shape),
        "data_type": values.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(values.shape)}},
        "codecs": codecs,
    }
    context = ts.Context()
    spec = {
        "driver": "zarr3",
        "kvstore": memory,
        "metadata": metadata,
        "store_data_equal_to_fill_value": True,
    }
    ts.open(spec, create=True, context=context).result().write(values).result()
    key = "c" + "/0" * values.ndim
    return bytes(ts.KvStore.open(memory, context=context).result().read(key).result().value)


def decode(decoder, out, data, start=0):
    requests.submit(lambda: decoder.into(out, data, start)).result()
    return out


@st.composite
def chunks(draw):
    dtype = np.dtype(draw(st.sampled_from(["uint8", "uint16", "uint32", "int32", "uint64"])))
    shape = draw(st.sampled_from([(1,), (7,), (64,), (1000,)]))
    seed = draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("codecs", CODECS)
@given(chunks(), st.data())
def test_any_part_of_a_chunk(codecs, values, data):
    decoder = Decoder(values.dtype.name, values.size, CODECS[codecs])
    written = encoded(values, CODECS[codecs])
    start = data.draw(st.integers(0, values.shape[0] - 1))
    stop = data.draw(st.integers(start, values.shape[0]))
    assert np.array_equal(decode(decoder, np.zeros_like(values), written), values)
    part = np.zeros_like(values[start:stop])
    assert np.array_equal(decode(decoder, part, written, start), values[start:stop])


@pytest.mark.parametrize("codecs", [c for c in CODECS if c != "no checksum"])
@given(chunks(), st.data())
def test_a_changed_bit_and_lost_bytes_are_errors(codecs, values, data):
    decoder = Decoder(values.dtype.name, values.size, CODECS[codecs])
    written = encoded(values, CODECS[codecs])
    bit = data.draw(st.integers(0, 8 * len(written) - 1))
    changed = bytearray(written)
    changed[bit // 8] ^= 1 << bit % 8
    longer = (
        () if codecs == "big end first" else (written + b"\0",)
    )  # TensorStore does not mind there
    for damaged in (bytes(changed), written[:-1], b"", written[1:], *longer):
        with pytest.raises((ValueError, OSError)):
            decode(decoder, np.zeros_like(values), damaged)


def test_what_is_not_checked_is_at_least_complete():
    decoder = Decoder("uint16", 4, CODECS["no checksum"])
    with pytest.raises(ValueError, match="7 bytes are not those of a chunk"):
        decode(decoder, np.zeros(4, np.uint16), bytes(7))
