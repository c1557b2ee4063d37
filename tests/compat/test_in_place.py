"""Token files of other systems read in place: what holds for every format, each by its own reader.

A format is a line of :data:`FORMATS`: how its files are written here, and how they are named.
"""

import gzip
import json
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import datasets
import jax
import numpy as np
import pyarrow as pa
import pytest
import yaml
from datasets import Features, Value
from datasets.arrow_writer import ArrowWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh
from typer.testing import CliRunner

from headrace import LmDataConfig, load_config
from headrace.cli.application import application
from headrace.errors import (
    CacheCorruptError,
    CacheError,
    CacheMissingError,
    ConfigError,
    HeadraceError,
)
from headrace.store import TokenCache, open_cache, verify
from headrace.store.layouts import FormatConfig
from headrace.testing import web_server

SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
Documents = Sequence[Sequence[int]]


def write_megatron(base: Path, documents: Documents, dtype: str = "uint16", each: int = 1) -> Path:
    """``base.bin`` and ``base.idx`` with ``each`` sequences in a document; returns the prefix."""
    code = {"uint8": 1, "int32": 4, "int64": 5, "uint16": 8}[dtype]
    arrays = [np.asarray(ids, dtype) for ids in documents]
    pieces = [piece for array in arrays for piece in np.array_split(array, each)]
    lengths = np.array([piece.size for piece in pieces], "<i4")
    pointers = (np.cumsum(lengths, dtype=np.int64) - lengths) * np.dtype(dtype).itemsize
    bounds = np.arange(len(arrays) + 1) * each
    base.with_suffix(".bin").write_bytes(b"".join(a.tobytes() for a in arrays))
    base.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0"
        + struct.pack("<QBQQ", 1, code, lengths.size, bounds.size)
        + lengths.tobytes()
        + pointers.astype("<i8").tobytes()
        + bounds.astype("<i8").tobytes()
    )
    return base


def write_npy(base: Path, documents: Documents) -> Path:
    """``base.npy`` of uint16 ids, without a header, as OLMo has them."""
    np.concatenate([np.asarray(ids, "uint16") for ids in documents]).tofile(f"{base}.npy")
    return base.with_suffix(".npy")


def write_headed_npy(base: Path, documents: Documents) -> Path:
    """``base.npy`` with NumPy's header, and OLMo's metadata beside it."""
    np.save(f"{base}.npy", np.concatenate([np.asarray(ids, "uint32") for ids in documents]))
    ends = np.cumsum([len(ids) for ids in documents]).tolist()
    lines = [f"{start},{stop},id-{stop},a.jsonl,7" for start, stop in pairwise([0, *ends])]
    Path(f"{base}.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return base.with_suffix(".npy")


def write_llmc(base: Path, documents: Documents) -> Path:
    """``base.bin`` as llm.c's data scripts write it for GPT-2."""
    ids = np.concatenate([np.asarray(ids, "uint16") for ids in documents])
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, ids.size
    base.with_suffix(".bin").write_bytes(header.tobytes() + ids.tobytes())
    return base.with_suffix(".bin")


def write_datatrove(base: Path, documents: Documents) -> Path:
    """``base.ds`` and ``base.ds.index`` as datatrove's DocumentTokenizer writes them."""
    path = base.with_suffix(".ds")
    np.concatenate([np.asarray(ids, "uint16") for ids in documents]).tofile(path)
    np.cumsum([len(ids) for ids in documents]).astype("<u8").tofile(f"{path}.index")
    return path


def write_arrow(base: Path, documents: Documents) -> Path:
    """``base.arrow`` of batches of 7 rows, as ``datasets`` saves them."""
    path = base.with_suffix(".arrow")
    with ArrowWriter(path=str(path), features=TOKEN_FEATURES, writer_batch_size=7) as writer:
        for ids in documents:
            writer.write({"input_ids": ids})
        writer.finalize()
    return path


class Format(NamedTuple):
    """A format.

    Attributes:
        case: Its name here.
        name: Its name.
        write: Writes documents below a base name.
        suffix: The ending of its files of tokens.
        settings: What the files do not say.
        before: Tokens before each document.
        after: Tokens after each document.
        is_indexed: Whether documents need an index.
    """

    case: str
    name: str
    write: Callable[[Path, Documents], Path]
    suffix: str
    settings: Mapping[str, object] = MappingProxyType({})
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    is_indexed: bool = False

    def framed(self, texts: Documents) -> list[list[int]]:
        """Documents with the tokens around each."""
        return [[*self.before, *text, *self.after] for text in texts]


TOKEN_FEATURES = Features({"input_ids": datasets.Sequence(Value("int32"))})
OLMO = {"dtype": "uint16", "eos_id": 0}
FORMATS = [
    Format("megatron", "megatron", write_megatron, ".bin"),
    Format("npy", "npy", write_npy, ".npy", OLMO, after=(0,), is_indexed=True),
    Format("headed npy", "npy", write_headed_npy, ".npy", is_indexed=True),
    Format("llmc", "llmc", write_llmc, ".bin", before=(50256,), is_indexed=True),
    Format("datatrove", "datatrove", write_datatrove, ".ds"),
    Format("arrow", "arrow", write_arrow, ".arrow"),
]
EVERY = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.case)


def random_texts(seed: int, count: int, longest: int = 400) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 50_000, n).tolist() for n in rng.integers(1, longest, count)]


def one_device() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]), ("data",))


def config_of(folder: Path, cache: object, **fields: object) -> LmDataConfig:
    plain = {"seq_len": 64, "batch_size": 8, "num_steps": 20, "components": {"a": cache}}
    (folder / "run.yaml").write_text(yaml.safe_dump({**plain, **fields}, sort_keys=False))
    return load_config(str(folder / "run.yaml"))


def run(*words: object) -> str:
    done = CliRunner().invoke(application(), [*map(str, words)])
    assert done.exit_code == 0, done.output
    return done.output


def settings_of(form: Format, index: Path | None) -> dict[str, object]:
    where = {"index": str(index)} if form.is_indexed and index else {}
    return {"name": form.name, **form.settings, **where}


def component(form: Format, cache: object, index: Path | None) -> dict[str, object]:
    """A component with an index in this folder, if the format needs one."""
    return {"cache": cache, "format": settings_of(form, index)}


def opened(form: Format, cache: object, index: Path | None) -> TokenCache:
    return open_cache(str(cache), settings=FormatConfig(**settings_of(form, index)))


@pytest.fixture(params=FORMATS, ids=lambda form: form.case, scope="module")
def store(request, tmp_path_factory) -> tuple[Format, Path, list[list[int]]]:
    """A folder with three files of a format, and the documents in the order of their names."""
    form: Format = request.param
    folder = tmp_path_factory.mktemp("store")
    texts = [form.framed(random_texts(seed, 30)) for seed in range(3)]
    for number, some in enumerate(texts):
        form.write(folder / f"part-{number}", some)
    return form, folder, [text for some in texts for text in some]


def test_all_it_names_are_the_same_cache(store, tmp_path):
    form, folder, texts = store
    listed = sorted(str(path) for path in folder.glob(f"*{form.suffix}"))
    stream = np.concatenate([np.array(text) for text in texts])
    for named in (str(folder), str(folder / f"*{form.suffix}"), listed):
        part = component(form, named, tmp_path / "index")
        cache = config_of(tmp_path, part).open_caches()["a"]
        assert (cache.tokens(0, cache.num_tokens) == stream).all()
        assert cache.lengths().tolist() == [len(text) for text in texts]
        assert cache.document(31).tolist() == texts[31]


def test_it_trains_on_what_a_built_cache_would(store, tmp_path):
    form, folder, texts = store
    before = sorted(folder.rglob("*"))
    packing = {"packing": {"plans": str(tmp_path / "plans")}}
    rows = {}
    for name, more in {"stream": {}, "packed": packing}.items():
        part = component(form, str(folder), tmp_path / "index")
        with config_of(tmp_path, part | more).loader(one_device()) as here:
            with here.iter_from_step() as batches:
                rows[name] = np.concatenate([np.asarray(b.tokens) for b in batches])
            reads = here.stats().reads
        assert reads.tensorstore_reads_issued == 0
        assert reads.mapped_blocks
    stream = [token for text in texts for token in text]
    starts = {tuple(stream[at : at + 64]) for at in range(0, len(stream))}
    assert all(tuple(row) in starts for row in rows["stream"].tolist())
    assert rows["packed"].shape == rows["stream"].shape
    assert sorted(folder.rglob("*")) == before


def test_removed_documents_and_hold_outs_are_left_out_without_a_file_beside(store, tmp_path):
    form, folder, texts = store
    before = sorted(folder.rglob("*"))
    (tmp_path / "gone.txt").write_text("0\n31\n")
    part = component(form, str(folder), tmp_path / "index") | {"remove": str(tmp_path / "gone.txt")}
    config = config_of(tmp_path, part, validation={"fraction": 0.25}, seq_len=16)
    train = config.train_datasets()["a"]
    held_out = config.validation_datasets()["a"]
    left = sum(len(text) for text in texts) - len(texts[0]) - len(texts[31])
    assert left - 16 * 30 <= 16 * (len(train) + len(held_out)) <= left
    assert sorted(folder.rglob("*")) == before


def test_without_a_folder_for_plans_packing_is_refused(store, tmp_path):
    form, folder, _ = store
    part = component(form, str(folder), tmp_path / "index")
    config = config_of(tmp_path, part | {"packing": {}})
    with pytest.raises(ConfigError) as refused:
        config.train_datasets()
    assert "plans" in str(refused.value.field)


def test_commands_show_it(store, tmp_path):
    form, folder, texts = store
    name, *more = settings_of(form, tmp_path / "index").items()
    words = [name[1], *(f"{key}={value}" for key, value in more)]
    option = ["--format", ",".join(map(str, words))]
    facts = json.loads(run("cache", "inspect", folder, "--json", *option))
    assert (facts["format"], facts["documents"]) == (form.name, len(texts))
    assert facts["bytes_on_disk"] == facts["source_bytes"] > facts["tokens"]
    assert "not promised" in run("cache", "inspect", folder, "--samples", 0, *option)
    report = json.loads(run("cache", "verify", folder, "--deep", "--json", *option))
    assert (report["damages"], report["parts"]) == ([], facts["parts"])
    assert report["unchecked"] == facts["limits"]
    config_of(tmp_path, component(form, str(folder), tmp_path / "index"))
    run("config", "check", tmp_path / "run.yaml")
    run("config", "simulate", tmp_path / "run.yaml")
    cat = run("run", "cat", tmp_path / "run.yaml", "--step", 3)
    assert str(folder) in cat


@pytest.mark.parametrize("words", ["diff X X", "reshuffle X O", "consolidate X O"])
def test_the_format_that_a_file_does_not_say_can_be_typed(tmp_path, words):
    ids = np.arange(100_000, dtype=np.uint16)
    ids.tofile(tmp_path / "ids.npy")
    places = {"X": str(tmp_path / "ids.npy"), "O": str(tmp_path / "out")}
    typed = ["cache", *(places.get(word, word) for word in words.split())]
    refused = CliRunner().invoke(application(), typed).exception
    assert isinstance(refused, ConfigError)
    cure = str(refused.cure).partition("or --format ")[2].removesuffix(".")
    done = CliRunner().invoke(application(), [*typed, "--format", cure.replace("32", "16")])
    assert done.exit_code == 0, done.output
    if words.endswith("X O"):
        copy = open_cache(str(tmp_path / "out"))
        assert copy.tokens(0, copy.num_tokens).tolist() == ids.tolist()


def test_nothing_is_written_beside_it_by_commands(store):
    form, folder, _ = store
    if form.settings:
        pytest.skip("these commands take no --format")
    before = sorted(folder.rglob("*"))
    icc = ["inspect", folder, "--icc", "--save", "--seq-len", 16, "--block", 16, "--blocks", 32]
    for words in (["remove", folder, 3], icc):
        done = CliRunner().invoke(application(), ["cache", *map(str, words)])
        assert isinstance(done.exception, ConfigError), done.output
        assert "beside which nothing is written" in str(done.exception)
    assert sorted(folder.rglob("*")) == before


def test_a_fingerprint_follows_content_not_place(store, tmp_path):
    form, folder, _ = store
    first = opened(form, folder, tmp_path / "index").fingerprint
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert opened(form, copy, tmp_path / "index").fingerprint == first
    file = next(copy.glob(f"*{form.suffix}"))
    raw = bytearray(file.read_bytes())
    raw[-64] ^= 1
    file.write_bytes(raw)
    assert opened(form, copy, tmp_path / "index").fingerprint != first


def test_a_file_that_is_cut_later_is_an_error_that_names_it(store, tmp_path):
    form, folder, _ = store
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = config_of(tmp_path, component(form, str(copy), tmp_path / "index"))
    cache = config.open_caches()["a"]
    file = sorted(copy.glob(f"*{form.suffix}"))[0]
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(HeadraceError, match=file.name):
        cache.tokens(0, cache.num_tokens)
    if "dtype" not in form.settings:  # without a header, a shorter file is another file
        with pytest.raises(HeadraceError):
            verify(str(copy), settings=config.components["a"].format)
        with pytest.raises(HeadraceError, match=file.name):
            config.open_caches()


@EVERY
@settings(max_examples=25)
@given(data=st.data())
def test_documents_are_those_that_were_written(form, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("files")
    text = st.lists(st.integers(1, 50_000), min_size=1, max_size=20)
    files = data.draw(st.lists(st.lists(text, min_size=1, max_size=8), min_size=1, max_size=3))
    files = [form.framed(texts) for texts in files]
    for number, texts in enumerate(files):
        form.write(folder / f"part-{number}", texts)
    texts = [text for some in files for text in some]
    opened(form, folder, folder / "index")  # makes the index; here it is read
    cache = opened(form, folder, folder / "index")
    assert cache.lengths().tolist() == [len(text) for text in texts]
    assert [cache.document(k).tolist() for k in range(cache.num_documents)] == texts
    first = data.draw(st.integers(0, len(texts)))
    last = data.draw(st.integers(first, len(texts)))
    assert cache.lengths(first, last).tolist() == [len(text) for text in texts[first:last]]


@pytest.fixture(scope="module")
def many_files(tmp_path_factory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("many")
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("form", [f for f in FORMATS if f.case != "arrow"], ids=lambda f: f.case)
def test_two_hundred_files_take_a_request_a_block_over_http(form, many_files):
    folder = many_files / form.case
    folder.mkdir()
    rng = np.random.default_rng(7)
    tokens = 74_000  # two blocks of 65,536 each, and 18 rows
    for number in range(200):
        form.write(folder / f"part-{number:03d}", [rng.integers(1, 50_000, tokens)])
    (folder / "c").mkdir()
    (folder / "c" / "0").write_bytes(bytes(1 << 20))  # named as a shard of a cache, and is none
    asked: list[str] = []

    def admits(target: str, headers: object) -> bool:
        asked.append(target)
        return True

    with web_server(folder, admits) as server:
        paths = [f"{server}/{path.name}" for path in sorted(folder.glob(f"*{form.suffix}"))]
        config = config_of(
            folder,
            component(form, paths, None),
            seq_len=4096,
            batch_size=16,
            num_steps=200 * 18 // 16,
        )
        with config.loader(one_device()) as loader:
            opening = len(asked)
            total = 0
            with loader.iter_from_step() as batches:
                for batch in batches:
                    total += int(np.asarray(batch.tokens).sum(dtype=np.int64))
            blocks = loader.stats().reads.block_fetches
    assert blocks >= 400
    assert len(asked) - opening <= 1.1 * blocks
    assert opening <= 200 * 9
    local = opened(form, folder, None)
    rows = [local.tokens(k * tokens, k * tokens + 18 * 4096) for k in range(200)]
    assert total == sum(int(row.sum(dtype=np.int64)) for row in rows)


@pytest.mark.parametrize("form", [f for f in FORMATS if f.is_indexed], ids=lambda f: f.case)
def test_without_an_index_a_file_is_one_document_and_says_so(form, tmp_path):
    texts = form.framed(random_texts(3, 20))
    form.write(tmp_path / "part-0", texts)
    cache = opened(form, tmp_path, None)
    assert cache.lengths().tolist() == [sum(len(text) for text in texts)]
    assert any("where documents end" in limit for limit in cache.ledger.metadata["limits"])
    part = component(form, str(tmp_path), None)
    config = config_of(tmp_path, part, split_documents=True, seq_len=32)
    if form.case != "npy":
        with pytest.raises(ConfigError, match="needs to know where documents end"):
            config.train_datasets()
        return
    with config.loader(one_device()) as loader:
        batch = loader.batch_at(0)
    tokens = np.asarray(batch.tokens)
    segments = np.asarray(batch.segment_ids)
    starts = np.diff(segments, axis=1) != 0
    assert (starts == (tokens[:, :-1] == 0)).all()


@pytest.mark.parametrize("raw", [b"", b"\x93NUMPY\x01\0\x08\0oops    "])
def test_an_index_that_is_damaged_is_refused_with_a_cure(tmp_path, raw):
    form = FORMATS[1]
    form.write(tmp_path / "part-0", form.framed(random_texts(3, 20)))
    opened(form, tmp_path, tmp_path / "index")
    [index] = (tmp_path / "index").iterdir()
    index.write_bytes(raw)
    with pytest.raises(CacheCorruptError) as refused:
        opened(form, tmp_path, tmp_path / "index")
    assert refused.value.value == str(index)


def lengths_after(file: Path, token: int) -> list[int]:
    """Lengths of the documents of a file, which end with a token, from an index beside it."""
    settings = FormatConfig("npy", "uint16", eos_id=token, index=str(file.parent))
    return open_cache(str(file.parent), settings=settings).lengths().tolist()


def test_documents_follow_the_settings_of_today_not_those_of_an_index(tmp_path):
    np.array([5, 6, 0, 7, 8, 0, 7, 1], "uint16").tofile(tmp_path / "a.npy")
    assert lengths_after(tmp_path / "a.npy", 0) == [3, 3, 2]
    assert lengths_after(tmp_path / "a.npy", 7) == [4, 3, 1]
    for spans, lengths in (("0,2\n2,8", [2, 6]), ("0,3\n3,8", [3, 5])):
        (tmp_path / "a.csv.gz").write_bytes(gzip.compress(spans.encode()))
        assert lengths_after(tmp_path / "a.npy", 0) == lengths
    (tmp_path / "a.csv.gz").unlink()
    assert lengths_after(tmp_path / "a.npy", 0) == [3, 3, 2]


def test_other_documents_are_another_cache(tmp_path):
    write_llmc(tmp_path / "a", [[50256, 1, 2], [50256, 8]])
    index = str(tmp_path / "index")
    settings = [{}, {"index": index}, {"index": index, "eos_id": 8}]
    caches = [open_cache(tmp_path / "a.bin", settings=FormatConfig(**s)) for s in settings]
    assert [cache.lengths().tolist() for cache in caches] == [[5], [3, 2], [4, 1]]
    assert len({cache.fingerprint for cache in caches}) == 3


def test_metadata_of_no_documents_is_an_index_of_none(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(0, "uint16"))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b""))
    cache = open_cache(tmp_path, settings=FormatConfig("npy", index=str(tmp_path / "index")))
    assert (cache.num_documents, cache.num_tokens) == (0, 0)


@pytest.mark.parametrize("values", [["a", "b"], [1.5, 2.5], [(1, 2)], [True]])
def test_what_holds_no_ids_is_refused(tmp_path, values):
    dtype = [("a", "i4"), ("b", "i4")] if isinstance(values[0], tuple) else None
    np.save(tmp_path / "a.npy", np.array(values, dtype))
    with pytest.raises(CacheCorruptError, match="not a row of ids") as refused:
        open_cache(tmp_path)
    assert refused.value.value == str(tmp_path / "a.npy")


@pytest.mark.parametrize(("stored", "said"), [("uint32", "uint16"), ("uint16", "uint32")])
def test_a_wrong_dtype_of_a_file_without_header_is_refused(tmp_path, stored, said):
    np.random.default_rng(0).integers(0, 100_000, 4000).astype(stored).tofile(tmp_path / "a.npy")
    with pytest.raises(CacheCorruptError, match="looks like") as refused:
        open_cache(tmp_path, settings=FormatConfig("npy", dtype=said))
    assert refused.value.value == str(tmp_path / "a.npy")
    assert open_cache(tmp_path, settings=FormatConfig("npy", dtype=stored)).num_tokens == 4000


def test_ids_outside_the_vocabulary_and_odd_sizes_are_refused(tmp_path):
    np.arange(1000, dtype="uint16").tofile(tmp_path / "a.npy")
    with pytest.raises(CacheCorruptError, match="has the id 999"):
        open_cache(tmp_path, settings=FormatConfig("npy", dtype="uint16", vocab_size=500))
    with pytest.raises(ConfigError, match="has no header") as refused:
        open_cache(tmp_path)
    assert refused.value.field == "format.dtype"
    (tmp_path / "a.npy").write_bytes(b"123")
    with pytest.raises(CacheCorruptError, match="no whole number of uint16"):
        open_cache(tmp_path, settings=FormatConfig("npy", dtype="uint16"))


@pytest.mark.parametrize(
    "lines", ["0,5,a\n4,9,b", "0,5,a\n6,9,b", "0,5,a\n5,8,b", "1,5,a\n5,9,b", "0,x"]
)
def test_metadata_that_contradicts_the_tokens_is_refused(tmp_path, lines):
    np.save(tmp_path / "a.npy", np.arange(9, dtype="uint32"))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(lines.encode()))
    with pytest.raises(CacheCorruptError):
        open_cache(tmp_path, settings=FormatConfig("npy", index=str(tmp_path / "index")))
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize(
    ("at", "raw", "problem"),
    [
        (4, struct.pack("<i", 2), "is of version 2"),
        (8, struct.pack("<i", 7), "was cut off"),
        (8, struct.pack("<i", -1), "was cut off"),
    ],
)
def test_a_lying_header_of_llmc_is_refused(tmp_path, at, raw, problem):
    file = write_llmc(tmp_path / "train_000", random_texts(1, 5))
    patched(file, at, raw)
    with pytest.raises(CacheCorruptError, match=problem) as refused:
        open_cache(tmp_path)
    assert refused.value.value == str(file)


def test_a_shard_of_another_kind_among_llmcs_is_refused(tmp_path):
    write_llmc(tmp_path / "train_000", random_texts(1, 5))
    (tmp_path / "train_001.bin").write_bytes(b"something else")
    with pytest.raises(CacheError, match="no shard of llm"):
        open_cache(tmp_path)


# What only Megatron's can have wrong


def megatron_pair(folder: Path) -> Path:
    return write_megatron(folder / "web_text_document", random_texts(1, 20))


def patched(file: Path, at: int, raw: bytes) -> None:
    content = bytearray(file.read_bytes())
    content[at : at + len(raw)] = raw
    file.write_bytes(content)


SEQUENCES = 20
POINTERS_AT = 34 + 4 * SEQUENCES
BOUNDS_AT = 34 + 12 * SEQUENCES


@pytest.mark.parametrize(
    ("ending", "at", "raw", "problem"),
    [
        (".idx", 18, struct.pack("<Q", 19), "was cut off, or its header is wrong"),
        (".idx", 18, struct.pack("<Q", 1 << 62), "has a header of"),
        (".idx", 17, bytes([4]), "one of them was cut off, or its header is wrong"),
        (".idx", 17, bytes([7]), "float32, which is not read"),
        (".idx", 9, struct.pack("<Q", 2), "is of version 2"),
        (".idx", BOUNDS_AT, struct.pack("<q", 1), "has documents from sequence 1"),
        (".idx", BOUNDS_AT - 8, struct.pack("<q", -2), "one of them was cut off"),
    ],
)
def test_a_lying_index_is_refused_at_opening(tmp_path, ending, at, raw, problem):
    base = megatron_pair(tmp_path)
    file = base.with_suffix(ending)
    patched(file, at, raw)
    with pytest.raises(CacheError, match=problem) as refused:
        open_cache(str(base))
    assert str(base) in str(refused.value.value)
    assert refused.value.cure


@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_a_pair_that_is_cut_or_halved_is_refused(tmp_path, ending):
    base = megatron_pair(tmp_path)
    file = base.with_suffix(ending)
    whole = file.read_bytes()
    file.write_bytes(whole[:-2])
    with pytest.raises(CacheCorruptError, match="cut off"):
        open_cache(str(base))
    file.unlink()
    with pytest.raises(HeadraceError):
        open_cache(str(base))


@pytest.mark.parametrize(
    ("at", "raw"),
    [
        (POINTERS_AT + 8 * 5, struct.pack("<q", 2)),  # two documents overlap
        (34 + 4 * 5, struct.pack("<i", -3)),
        (BOUNDS_AT + 8 * 5, struct.pack("<q", 11)),
    ],
)
def test_documents_that_overlap_are_refused_where_they_are_read(tmp_path, at, raw):
    base = megatron_pair(tmp_path)
    patched(base.with_suffix(".idx"), at, raw)
    cache = open_cache(str(base))
    with pytest.raises(CacheCorruptError, match="overlap") as refused:
        cache.lengths()
    assert refused.value.value == f"{base}.idx"
    problems = [damage.problem for damage in verify(str(base), deep=True).damages]
    assert any("overlap" in problem for problem in problems)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
@pytest.mark.parametrize("each", [1, 3])
def test_documents_of_several_sequences_are_one(tmp_path, dtype, each):
    texts = [[k % 200 for k in text] for text in random_texts(4, 20, 30)]
    cache = open_cache(str(write_megatron(tmp_path / "a_document", texts, dtype, each)))
    assert cache.dtype == dtype
    assert [cache.document(k).tolist() for k in range(20)] == texts
    assert cache.lengths(3, 9).tolist() == [len(text) for text in texts[3:9]]


def test_megatrons_order_of_documents_of_several_sequences_is_refused(tmp_path):
    """Its GPT data shuffles sequences: seen with megatron-core 0.16.1."""
    fields = {"compat": {"system": "megatron"}, "seq_len": 9, "batch_size": 2, "num_steps": 5}
    texts = random_texts(4, 20, 30)
    for each in (1, 3):
        path = str(write_megatron(tmp_path / f"{each}_document", texts, each=each))
        config = config_of(tmp_path, {"cache": path}, **fields)
        if each == 1:
            assert len(config.dataset()) == 10
            continue
        with pytest.raises(ConfigError, match="not one sequence") as refused:
            config.dataset()
        assert (refused.value.field, refused.value.value) == ("components.a.cache", path)
        limits = open_cache(path).ledger.metadata["limits"]
        assert any("each sequence as one" in limit for limit in limits)


def test_another_format_or_dtype_than_the_files_is_refused(tmp_path):
    base = megatron_pair(tmp_path)
    with pytest.raises(ConfigError, match="uint16") as refused:
        config_of(tmp_path, {"cache": str(base), "format": {"dtype": "int32"}}).open_caches()
    assert refused.value.field == "components.a.format.dtype"
    with pytest.raises(HeadraceError, match="leave format out"):
        config_of(tmp_path, {"cache": str(base), "format": "levanter"}).open_caches()
    with pytest.raises(ConfigError, match="Did you mean 'megatron'"):
        config_of(tmp_path, {"cache": str(base), "format": "megatorn"})


def test_files_of_two_dtypes_are_two_components(tmp_path):
    write_megatron(tmp_path / "a_document", random_texts(1, 3))
    write_megatron(tmp_path / "b_document", random_texts(2, 3), "int32")
    with pytest.raises(ConfigError, match="Make two components"):
        open_cache(tmp_path)


@pytest.mark.parametrize("documents", [0, 2])
def test_files_without_sequences_are_sound(tmp_path, documents):
    bounds = bytes(8 * (documents + 1))
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 0, documents + 1)
    (tmp_path / "empty.idx").write_bytes(header + bounds)
    (tmp_path / "empty.bin").write_bytes(b"")
    texts = random_texts(1, 3)
    write_megatron(tmp_path / "full", texts)
    cache = open_cache(tmp_path)
    assert cache.lengths().tolist() == [0] * documents + [len(text) for text in texts]
    assert verify(str(tmp_path), deep=True).damages == []


def test_a_pattern_may_name_prefixes(tmp_path):
    for name, text in (("web", [1, 2]), ("code", [3]), ("maths", [9])):
        write_megatron(tmp_path / name, [text])
    cache = open_cache(f"{tmp_path}/[wc]*[be]")
    assert [cache.document(k).tolist() for k in range(cache.num_documents)] == [[3], [1, 2]]
    assert "sound" in run("cache", "verify", f"{tmp_path}/*", "--deep")
    with pytest.raises(CacheMissingError):
        open_cache(f"{tmp_path}/x*")


@pytest.mark.parametrize(("eos_id", "vocab_size"), [(-1, None), (1 << 16, None), (50, 50)])
def test_an_end_that_is_no_id_is_refused(tmp_path, eos_id, vocab_size):
    np.save(tmp_path / "a.npy", np.arange(8, dtype=np.uint16))
    settings = FormatConfig("npy", eos_id=eos_id, vocab_size=vocab_size, index=f"{tmp_path}/index")
    with pytest.raises(ConfigError, match="is no id") as refused:
        open_cache(f"{tmp_path}/a.npy", settings=settings)
    assert refused.value.field == "format.eos_id"


@pytest.mark.parametrize("lost", ["a", "b"])
def test_tokens_without_their_index_are_not_left_out(tmp_path, lost):
    for name in "ab":
        write_megatron(tmp_path / name, random_texts(1, 3))
    (tmp_path / f"{lost}.idx").unlink()
    for named in (tmp_path, tmp_path / "*"):
        with pytest.raises(CacheError, match="is missing") as refused:
            open_cache(str(named))
        assert refused.value.value == str(tmp_path / f"{lost}.idx")
    assert open_cache(str(tmp_path / "*.idx")).num_documents == 3


# Hostile files of every format

EXTREMES = (0, 1, 7, -1, 255, 1 << 31, -(1 << 31), 1 << 40, 1 << 62, -(1 << 63))


def damage(content: bytes, draw: np.random.Generator) -> bytes:
    """A file that was cut, prolonged or doubled, or has other numbers near its beginning."""
    size = len(content)
    near = int(draw.integers(0, min(size, 1200)))
    width = int(draw.choice([4, 8]))
    value = int(draw.choice(EXTREMES)) & ((1 << 8 * width) - 1)
    ways = [
        content[: int(draw.integers(0, size))],
        content[near + 1 :],
        content + bytes(int(draw.integers(1, 4000))),
        content + content,
        content[:near]
        + bytes([content[near] ^ 1 << int(draw.integers(0, 8))])
        + content[near + 1 :],
        content[:near] + value.to_bytes(width, "little") + content[near + width :],
        content[:near] + bytes(min(48, size - near)) + content[near + 48 :],
    ]
    return ways[int(draw.integers(0, len(ways)))]


def refusal(form: Format, folder: Path, index: Path | None) -> HeadraceError | None:
    """The error of a store that is read whole; None if it is read."""
    try:
        cache = opened(form, folder, index)
        documents = [cache.document(number) for number in range(cache.num_documents)]
    except HeadraceError as error:
        return error
    assert sum(map(len, documents)) == cache.num_tokens
    return None


@EVERY
def test_a_hostile_file_is_read_whole_or_refused_with_file_and_cure(form, tmp_path):
    texts = form.framed(random_texts(3, 12, 60))
    (tmp_path / "good").mkdir()
    for number in range(2):
        form.write(tmp_path / f"good/p{number}", texts)
    draw = np.random.default_rng(0)
    refused = 0
    for trial in range(60):
        folder = tmp_path / f"bad-{trial}"
        shutil.copytree(tmp_path / "good", folder)
        victims = sorted(folder.iterdir())
        victim = victims[int(draw.integers(0, len(victims)))]
        victim.write_bytes(damage(victim.read_bytes(), draw))
        index = tmp_path / f"index-{trial}" if trial % 2 else None
        error = refusal(form, folder, index)
        if error is not None:
            refused += 1
            assert str(folder) in str(error)
            assert error.cure
    assert refused >= 10


def test_a_record_batch_that_says_it_has_no_rows_is_not_passed_over(tmp_path):
    path = write_arrow(tmp_path / "a", [[1, 2, 3]] * 9)
    content = path.read_bytes()
    rows = [at for at in range(0, len(content), 8) if content[at : at + 8] == struct.pack("<q", 7)]
    for at in rows:  # of the record batch, and of its column
        patched(path, at, bytes(8))
    with pytest.raises(CacheCorruptError, match="ids but no rows in record batch 0"):
        open_cache(str(path))


@pytest.mark.parametrize("as_file", [False, True])
def test_zeros_in_an_arrow_stream_do_not_hide_what_follows(tmp_path, as_file):
    rows = pa.table({"input_ids": pa.array([[1, 2, 3]] * 9, pa.list_(pa.int32()))})
    path = tmp_path / "a.arrow"
    new = pa.ipc.new_file if as_file else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as sink, new(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=3)
    assert open_cache(str(path)).num_documents == 9
    content = path.read_bytes()
    batches = [at for at in range(0, len(content), 8) if content[at : at + 4] == b"\xff" * 4]
    patched(path, batches[2], bytes(8))
    with pytest.raises(CacheCorruptError, match="after 1 record batches, and more follows"):
        open_cache(str(path))
