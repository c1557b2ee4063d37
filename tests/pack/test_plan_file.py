"""Plans on disk: the plan that was asked for, or an error, or a new one."""

import hashlib
import json
import shutil
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CacheCorruptError, CacheError, ConfigError, PlanMismatchError
from headrace.pack import plan_file, plan_packs
from headrace.pack.plan_file import PlanRequest, open_plan, plan_findings, read_plan, write_plan
from headrace.pack.spec import PackSpec
from headrace.pack.starts import DocumentStarts
from headrace.store.vectors import PiecedVector

LENGTHS = np.random.default_rng(0).integers(0, 300, 400)
ALGORITHMS = ("bfd", "next_fit", "wrap", "windowed", "bfd_split")


def request_for(algorithm="bfd", **more) -> PlanRequest:
    return PlanRequest(
        "sha256:content", LENGTHS.size, PackSpec(256, algorithm, block_tokens=1024), more
    )


def chunks():
    return np.split(LENGTHS, [100, 100, 350])


def never():
    raise AssertionError("the plan is there: nobody needs the lengths")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_read_is_the_plan(tmp_path, algorithm, monkeypatch):
    monkeypatch.setattr(plan_file, "_CHUNK", 7)
    made = open_plan(str(tmp_path), request_for(algorithm), chunks)
    wanted = plan_packs(LENGTHS, 256, algorithm, block_tokens=1024)
    again = open_plan(str(tmp_path), request_for(algorithm), never)
    for plan in (made, again):
        assert plan.raw_plan == wanted.raw_plan
        assert plan.counts == wanted.counts
        assert plan.checksum == wanted.checksum
        assert [x.tolist() for x in plan.items] == [x.tolist() for x in wanted.items]
        assert plan.lengths.tolist() == wanted.lengths.tolist()
        vars(plan).pop("checksum")
        assert plan.checksum == wanted.checksum  # computed from what lies on disk
    names = sorted(p.name for p in (tmp_path / request_for(algorithm).fingerprint).iterdir())
    cut = ["offset.bin"] if wanted.counts.split_documents else []
    assert names == ["bounds.bin", "document.bin", *cut, "plan.json", "size.bin"]
    assert isinstance(again.items.document, np.memmap)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("store", ["disk", "memory"])
def test_a_large_plan_is_read_in_pieces(tmp_path, algorithm, store, monkeypatch):
    monkeypatch.setattr(plan_file, "_SMALL", 0)
    folder = str(tmp_path) if store == "disk" else f"memory://large-{algorithm}"
    starts = DocumentStarts()

    def lengths():
        for chunk in chunks():
            starts.add(chunk)
            yield chunk

    plan = open_plan(folder, request_for(algorithm), lengths, starts=starts)
    wanted = plan_packs(LENGTHS, 256, algorithm, block_tokens=1024)
    assert isinstance(plan.items.document, PiecedVector)
    assert (len(plan), plan.max_items, plan.checksum) == (
        len(wanted),
        wanted.max_items,
        wanted.checksum,
    )
    packs = np.random.default_rng(0).integers(0, len(plan), 20)
    (items, held), (same, count) = plan.of_packs(packs), wanted.of_packs(packs)
    assert (items.tolist(), held.tolist()) == (same.tolist(), count.tolist())
    for values, others in zip(plan.items, wanted.items, strict=True):
        assert values[items].tolist() == others[items].tolist()
    begin = (np.cumsum(LENGTHS) - LENGTHS)[wanted.items.document] + wanted.items.offset
    assert plan.start[items].tolist() == begin[items].tolist()
    assert plan.raw_plan == wanted.raw_plan
    assert plan.lengths.tolist() == wanted.lengths.tolist()


def test_a_damaged_piece_is_refused_when_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_file, "_SMALL", 0)
    open_plan(str(tmp_path), request_for(), chunks)
    path = tmp_path / request_for().fingerprint / "size.bin"
    data = bytearray(path.read_bytes())
    data[8] ^= 1
    path.write_bytes(data)
    plan = open_plan(str(tmp_path), request_for(), never)
    with pytest.raises(
        CacheCorruptError,
        match=r"size\.bin.*is not what was written .piece 0.*Delete the plan's folder",
    ):
        plan.items.size[np.array([5])]


def test_every_flag_has_a_plan_of_its_own(tmp_path):
    base = PlanRequest("sha256:content", 400, PackSpec(256))
    others = [
        PlanRequest("sha256:other", 400, PackSpec(256)),
        PlanRequest("sha256:content", 401, PackSpec(256)),
        PlanRequest("sha256:content", 400, PackSpec(257)),
        PlanRequest("sha256:content", 400, PackSpec(256, "wfd")),
        PlanRequest("sha256:content", 400, PackSpec(256, long="drop")),
        PlanRequest("sha256:content", 400, PackSpec(256, min_fill=0.5)),
        PlanRequest("sha256:content", 400, PackSpec(256, "windowed")),
        PlanRequest("sha256:content", 400, PackSpec(256, "windowed", block_tokens=4096)),
        PlanRequest("sha256:content", 400, PackSpec(256), {"template": "chat"}),
    ]
    assert len({r.fingerprint for r in [base, *others]}) == 1 + len(others)
    assert (
        base.fingerprint
        == PlanRequest("sha256:content", 400, PackSpec(256, long="keep")).fingerprint
    )


def test_a_new_version_of_the_algorithms_has_another_plan(monkeypatch):
    before = request_for().fingerprint
    monkeypatch.setattr("headrace.pack.spec.PACK_VERSION", 2)
    assert request_for().fingerprint != before


@pytest.mark.parametrize("name", ["document.bin", "bounds.bin", "size.bin", "offset.bin"])
@pytest.mark.parametrize("damage", ["flip", "short", "gone"])
def test_a_damaged_plan_is_refused_or_made_again(tmp_path, name, damage, caplog):
    asked = request_for("wrap")
    wanted = open_plan(str(tmp_path), asked, chunks).raw_plan
    path = tmp_path / asked.fingerprint / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    if damage != "gone":
        path.write_bytes(bytes(data) if damage == "flip" else bytes(data[:-1]))
    with pytest.raises(CacheCorruptError, match=name):
        open_plan(str(tmp_path), asked, never, rebuild=False)
    assert open_plan(str(tmp_path), asked, chunks).raw_plan == wanted
    assert "is made again" in caplog.text
    assert open_plan(str(tmp_path), asked, never).raw_plan == wanted


def digest_of(record):
    """The digest that plan.json has of its other fields."""
    canonical = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def test_a_damaged_record_is_noticed(tmp_path):
    asked = request_for()
    open_plan(str(tmp_path), asked, chunks)
    path = tmp_path / asked.fingerprint / "plan.json"
    text = path.read_text()
    record = json.loads(text)
    path.write_text(text.replace('"packs": ', '"packs": 1'))
    with pytest.raises(CacheCorruptError, match="its digest is of another text"):
        read_plan(str(tmp_path), asked)
    digest = record.pop("digest")
    path.write_text(json.dumps(record))
    with pytest.raises(CacheCorruptError, match="is not a plan's record"):
        read_plan(str(tmp_path), asked)
    assert digest == digest_of(record)
    for array in (
        "bounds",
        "size",
    ):  # objects would be looked for at the addresses that the file holds
        shape = {
            "dtype": "O",
            "length": record["arrays"][array]["length"] * (1 if array == "bounds" else 0.5),
        }
        unsafe = {**record["arrays"], array: {**record["arrays"][array], **shape}}
        forged = {**record, "arrays": unsafe}
        path.write_text(json.dumps({**forged, "digest": digest_of(forged)}))
        with pytest.raises(CacheCorruptError, match="does not describe its arrays"):
            read_plan(str(tmp_path), asked)
    path.write_text("{")
    with pytest.raises(CacheCorruptError, match="is not a plan's record"):
        read_plan(str(tmp_path), asked)
    del record["arrays"]["bounds"]
    forged = record
    path.write_text(json.dumps({**forged, "digest": digest_of(forged)}))
    with pytest.raises(CacheCorruptError, match="does not list"):
        read_plan(str(tmp_path), asked)


def test_every_damage_of_a_folder_of_plans_is_found_and_named(tmp_path):
    one, other = (tmp_path / request_for(algorithm).fingerprint for algorithm in ("wrap", "bfd"))
    for algorithm in ("wrap", "bfd"):
        open_plan(str(tmp_path), request_for(algorithm), chunks)
    (tmp_path / "half-made").mkdir()
    assert plan_findings(str(tmp_path)) == []
    pick = np.random.default_rng(0)
    for path in sorted(one.iterdir()):
        content = path.read_bytes()
        for at in pick.integers(0, len(content), 8).tolist():
            for damaged in (
                bytes([*content[:at], content[at] ^ 1, *content[at + 1 :]]),
                content[:at],
                None,
            ):
                path.unlink() if damaged is None else path.write_bytes(damaged)
                if damaged is None and path.name == "plan.json":
                    continue  # a plan to come
                ((file, _),) = plan_findings(str(tmp_path))
                assert file == str(path)
        path.write_bytes(content)
    shutil.rmtree(one)
    shutil.copytree(other, one)
    assert plan_findings(str(tmp_path)) == [
        (str(one), "is the plan of another request: somebody moved it there")
    ]


def test_a_plan_of_another_request_is_refused(tmp_path):
    asked = request_for()
    other = request_for("wfd")
    open_plan(str(tmp_path), other, chunks)
    (tmp_path / other.fingerprint).rename(tmp_path / asked.fingerprint)
    with pytest.raises(PlanMismatchError, match="is the plan of another request"):
        open_plan(str(tmp_path), asked, chunks)


def test_an_interrupted_plan_leaves_nothing_that_is_taken_for_one(tmp_path):
    def broken():
        yield LENGTHS[:200]
        raise RuntimeError("no more")

    asked = request_for("next_fit")
    with pytest.raises(RuntimeError, match="no more"):
        open_plan(str(tmp_path), asked, broken)
    assert read_plan(str(tmp_path), asked) is None
    assert not list((tmp_path / asked.fingerprint).iterdir())
    assert len(open_plan(str(tmp_path), asked, chunks)) > 0


def test_lengths_must_be_as_many_as_was_said(tmp_path):
    with pytest.raises(ConfigError, match="differs from the 100 lengths"):
        write_plan(str(tmp_path), request_for(), [LENGTHS[:100]])
    with pytest.raises(ConfigError, match="gives no packs"):
        write_plan(str(tmp_path), request_for("next_fit"), [np.zeros(400, np.int64)])
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot be written"):
        write_plan(str(tmp_path / "file"), request_for(), chunks())


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(any))
def test_plans_on_other_stores_are_read_as_they_are_on_disk(lengths):
    asked = PlanRequest("sha256:x", len(lengths), PackSpec(20, "bfd_split"))
    folder = f"memory://plans-{abs(hash(tuple(lengths)))}"
    plan = open_plan(folder, asked, lambda: [np.array(lengths)])
    assert plan.raw_plan == plan_packs(lengths, 20, "bfd_split").raw_plan
    assert open_plan(folder, asked, never).checksum == plan.checksum


def test_several_who_make_a_plan_at_once_make_the_same(tmp_path):
    with ThreadPoolExecutor(6) as pool:
        plans = list(
            pool.map(lambda _: open_plan(str(tmp_path), request_for("windowed"), chunks), range(12))
        )
    assert {p.checksum for p in plans} == {
        plan_packs(LENGTHS, 256, "windowed", block_tokens=1024).checksum
    }
    (folder,) = tmp_path.iterdir()
    assert not [p.name for p in folder.iterdir() if "tmp" in p.name]


@pytest.mark.parametrize("algorithm", ["next_fit", "wrap"])
def test_plans_of_any_size_stream_to_disk(tmp_path, algorithm):
    """1e8 documents hold no more memory than 1e5: the larger of two sizes would, with an eighth of
    its lengths.
    """
    chunk = np.random.default_rng(0).integers(1, 600, 1 << 14)
    peaks = []
    for chunks_ in (16, 192):
        request = PlanRequest(f"sha256:{chunks_}", chunk.size * chunks_, PackSpec(4096, algorithm))
        tracemalloc.start()
        write_plan(str(tmp_path), request, (chunk for _ in range(chunks_)))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        found = read_plan(str(tmp_path), request)
        assert found is not None
        assert found.counts.packed_tokens == int(chunk.sum()) * chunks_
    assert (
        peaks[1] - peaks[0] < (192 - 16) * chunk.nbytes / 8
    )  # less than threads have on their way
