"""``compat``: runs in the order of Megatron-LM and of nmoe, from their own files to batches,
against a slow count of what each of them reads, which their own vectors check first.
"""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from jax.sharding import Mesh
from typer.testing import CliRunner

from headrace import DataLoader, LmDataConfig, load_config
from headrace.analysis.check.plan import RunPlan
from headrace.cli.application import application
from headrace.data.dataset import rows_of_step
from headrace.data.provenance import spans_of_rows
from headrace.errors import ConfigError
from headrace.store import open_cache
from headrace_compat import ltor_masks

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(name: str) -> list[dict]:
    return json.loads((GOLDEN / f"{name}.json").read_text())["cases"]


def slow_sample_index(
    lengths: Sequence[int], documents: Sequence[int], stride: int
) -> list[tuple[int, int]]:
    """Megatron's walk over documents, one sample after the other."""
    samples = [(0, 0)]
    place = 0
    offset = 0
    for _ in range((sum(lengths[d] for d in documents) - 1) // stride):
        left = stride + 1
        while left:
            length = lengths[documents[place]] - offset
            left -= length
            if left <= 0:
                offset += left + length - 1
                left = 0
            else:
                place = place + 1
                offset = 0
        samples.append((place, offset))
    return samples


def slow_samples(
    texts: Sequence[Sequence[int]], chosen: range, stride: int, wanted: int | None, seed: int
) -> Iterator[list[int]]:
    """The samples of Megatron's GPT dataset, one after the other."""
    lengths = [len(text) for text in texts]
    tokens = sum(lengths[d] for d in chosen)
    epochs = 1
    while wanted is not None and epochs * tokens < wanted * stride + 1:
        epochs += 1
    before = ((epochs - 1) * tokens - 1) // stride
    apart = (
        epochs > 1 and wanted is not None and wanted - before < int(0.8 * ((tokens - 1) // stride))
    )
    state = np.random.RandomState(seed)
    documents: list[int] = []
    for passes in [epochs - 1, 1] if apart else [epochs]:
        some = np.array([*chosen] * passes, np.int32)
        state.shuffle(some)
        documents += some.tolist()
    index = slow_sample_index(lengths, documents, stride)
    total = len(index) - 1
    order: list[int] = []
    for begin, end in [(0, before), (before, total)] if apart else [(0, total)]:
        some = np.arange(begin, end, dtype=np.uint32)
        state.shuffle(some)
        order += some.tolist()
    for number in order:
        place, offset = index[number]
        window: list[int] = []
        while len(window) <= stride:
            window += texts[documents[place]][offset : offset + stride + 1 - len(window)]
            place = place + 1
            offset = 0
        yield window


def slow_blend(weights: Sequence[float], n: int) -> list[int]:
    """Megatron's ``build_blending_indices``."""
    share = np.array(weights) / np.sum(weights)
    drawn = np.zeros(len(weights))
    order = []
    for s in range(n):
        k = int(np.argmax(share * max(s, 1) - drawn))
        drawn[k] += 1
        order.append(k)
    return order


@pytest.mark.parametrize("case", golden("megatron_gpt_index"), ids=lambda c: f"seed {c['seed']}")
def test_the_slow_walk_is_megatrons(case):
    index = [
        list(x)
        for x in slow_sample_index(case["sizes"], case["document_index"], case["seq_length"])
    ]
    assert index == (
        case["sample_index"] if case["drop_last_partial"] else case["sample_index"][:-1]
    )


@pytest.mark.parametrize("case", golden("megatron_blending"), ids=lambda c: str(c["weights"]))
def test_the_slow_blend_is_megatrons(case):
    assert slow_blend(case["weights"], len(case["dataset_index"])) == case["dataset_index"]


def build(paths: Sequence[Path], cache: Path, *more: str) -> None:
    """Builds a cache of native files by the command line."""
    line = ["build", *map(str, paths), "-o", str(cache), "-t", "ids:50304", *more]
    done = CliRunner().invoke(application(), line)
    assert done.exit_code == 0, done.output


def load(folder: Path, config: dict) -> LmDataConfig:
    (folder / "run.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return load_config(str(folder / "run.yaml"))


def one_device(config: LmDataConfig) -> DataLoader:
    return config.loader(Mesh(np.array(jax.devices()[:1]), ("data",)))


WEIGHTS = {"web": 0.5, "code": 0.3, "math": 0.2}


@pytest.fixture(scope="module")
def corpora(
    tmp_path_factory: pytest.TempPathFactory, native_shards: ModuleType
) -> tuple[Path, dict[str, list]]:
    """Three corpora as Megatron's ``.bin`` and ``.idx``; texts by name."""
    folder = tmp_path_factory.mktemp("megatron")
    rng = np.random.default_rng(5)
    texts = {
        name: [rng.integers(0, 50304, n).tolist() for n in rng.integers(0, longest, 60)]
        for name, longest in zip(WEIGHTS, (50, 21, 90), strict=True)
    }
    for name, documents in texts.items():
        build(
            [native_shards.write_megatron(folder / f"{name}_text_document", documents)],
            folder / name,
        )
    return folder, texts


def megatron_config(folder: Path, **fields: object) -> dict:
    components = {
        name: {"cache": str(folder / name), "weight": weight} for name, weight in WEIGHTS.items()
    }
    plain = {
        "seq_len": 17,
        "batch_size": 8,
        "num_steps": 60,
        "seed": 1234,
        "components": components,
    }
    return {"compat": {"system": "megatron", "split": "90,10,0"}, **plain, **fields}


def megatron_run(folder: Path, **fields: object) -> LmDataConfig:
    return load(folder, megatron_config(folder, **fields))


@pytest.mark.parametrize("in_place", [False, True])
def test_megatrons_samples_come_in_megatrons_order(corpora, in_place):
    folder, texts = corpora
    plain = megatron_config(folder)
    for name, component in plain["components"].items() if in_place else ():
        component["cache"] = str(folder / f"{name}_text_document")
    config = load(folder, plain)
    target = 60 * 8
    wanted = {n: math.ceil(math.ceil(target * w) * 1.005) for n, w in WEIGHTS.items()}
    split = range(round(0.9 * 60))
    streams = {n: slow_samples(texts[n], split, 16, wanted[n], 1234) for n in WEIGHTS}
    dataset = config.datasets()
    epochs = {n: len(dataset[n]) / (sum(len(texts[n][d]) for d in split) // 16) for n in WEIGHTS}
    assert max(epochs.values()) > 2, epochs  # two epochs and more of one, one of another
    order = slow_blend([*WEIGHTS.values()], target)
    with one_device(config) as loader:
        for step in range(60):
            batch = loader.batch_at(step)
            sources = order[step * 8 : step * 8 + 8]
            assert np.asarray(batch.source_id).tolist() == sources
            assert np.asarray(batch.tokens).tolist() == [
                next(streams[[*WEIGHTS][k]]) for k in sources
            ]
        again = np.asarray(loader.batch_at(31).tokens)
    with one_device(config) as other:
        assert (np.asarray(other.batch_at(31).tokens) == again).all()


def test_its_validation_side_is_an_epoch_of_the_second_part(corpora):
    folder, texts = corpora
    sides = megatron_run(folder).validation_datasets()
    for name, side in sides.items():
        rows = [row.tolist() for row in side.read(range(len(side))).tokens]
        assert rows == [*slow_samples(texts[name], range(54, 60), 16, None, 1234)]


def test_one_corpus_has_no_surplus(corpora):
    folder, texts = corpora
    plain = megatron_config(folder, compat="megatron")
    plain["components"] = {"code": plain["components"]["code"]}
    config = load(folder, plain)
    stream = slow_samples(texts["code"], range(60), 16, 60 * 8, 1234)
    with one_device(config) as loader:
        for step in range(60):
            assert np.asarray(loader.batch_at(step).tokens).tolist() == [
                next(stream) for _ in range(8)
            ]


def test_without_the_extra_token_windows_do_not_overlap(corpora):
    folder, texts = corpora
    dataset = megatron_run(
        folder, compat={"system": "megatron", "extra_token": False}, seq_len=16
    ).datasets()["web"]
    tokens = dataset.read(range(len(dataset))).tokens
    text = [*chain(*texts["web"])]
    passes = len(dataset) * 16 // len(text)
    counts = np.bincount(tokens.reshape(-1), minlength=50304) - passes * np.bincount(
        text, minlength=50304
    )
    assert counts.min() >= -15  # but for the last tokens, each is there once a pass
    assert np.abs(counts).sum() < len(text) + 16


def test_every_token_of_a_batch_is_told_its_document(corpora):
    folder, texts = corpora
    dataset = (config := megatron_run(folder)).dataset()
    rows = rows_of_step(dataset, dataset.batch_schedule, 7, "stream")
    with one_device(config) as loader:
        tokens = np.asarray(loader.batch_at(7).tokens)
    spans = spans_of_rows(rows)
    for k in range(len(spans)):
        name = rows.names[rows.component[spans.row[k]]]
        text = texts[name][spans.document[k]]
        begin = spans.offset[k]
        size = spans.size[k]
        column = spans.column[k]
        assert tokens[spans.row[k], column : column + size].tolist() == text[begin : begin + size]
    assert spans.size.sum() == tokens.size


@pytest.mark.parametrize(
    "case", [c for c in golden("megatron_samplers") if c["kind"] == "single"], ids=str
)
def test_a_rank_reads_the_slice_that_megatrons_sampler_gives_it(corpora, case):
    """Rows of a step are samples in their order; a rank takes its slice of them."""
    folder, _ = corpora
    ranks = case["dp"]
    size = case["mbs"]
    config = megatron_run(
        folder, batch_size=ranks * size, num_steps=case["total"] // (ranks * size)
    )
    dataset = config.dataset()
    batches = []
    for step in range(case["consumed"] // (ranks * size), config.num_steps or 0):
        rows = rows_of_step(dataset, dataset.batch_schedule, step, "stream")
        batches.append(rows.example.reshape(ranks, size)[case["rank"]].tolist())
    assert batches == case["batches"]


def test_another_number_of_samples_is_another_order(corpora):
    folder, _ = corpora
    short, long = (megatron_run(folder, num_steps=n).dataset() for n in (40, 60))
    assert short.describe() != long.describe()
    assert (short.read(range(8)).tokens != long.read(range(8)).tokens).any()


BAD = [
    ({"num_steps": None}, r"num_steps: is missing, and Megatron's order needs it. Give the steps"),
    ({"compat": "megatrom"}, "compat.system = 'megatrom': .*megatron"),
    (
        {"compat": "slime"},
        "compat.system = 'slime': is no order of documents. Its order of prompts",
    ),
    (
        {"compat": "coordexp"},
        "compat.system = 'coordexp': is no order of documents. Its plans are packing",
    ),
    ({"compat": {"system": "nmoe", "split": "9,1"}}, "compat.split = '9,1': is not known to nmoe"),
    (
        {"compat": {"system": "nmoe", "extra_token": False}},
        "compat.extra_token = False: is not known to nmoe",
    ),
    (
        {"compat": {"system": "megatron", "split": "many"}},
        "split = 'many': is not a list of numbers",
    ),
    (
        {"compat": {"system": "megatron", "split": "0,1"}},
        r"compat.split = '0,1': leaves no document of component",
    ),
    (
        {"shuffle": True},
        "shuffle = True: cannot be combined with compat: megatron. Write False, or leave it out",
    ),
    (
        {"policy": "exhaustive"},
        "policy = 'exhaustive': cannot be combined with compat: megatron. Write greedy",
    ),
    ({"validation": {"one_in": 5}}, "validation = .*: cannot be combined with compat: megatron"),
    (
        {"seq_len": {0: 17, 5: 33}},
        "seq_len = .*: cannot be combined with compat: megatron. Give one number",
    ),
    ({"max_epochs": 2}, "max_epochs = 2.*: cannot be combined with compat: megatron"),
    ({"seed": -3}, r"seed = -3: must lie in 0 .. 2\*\*32 - 1 for Megatron's order"),
    (
        {"seq_len": 100_000},
        "seq_len = 100000: is longer than the .* tokens of the split's 54 documents",
    ),
    ({"weights": {"temperature": 2}}, "cannot be combined with compat|weights"),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=lambda x: str(x)[:40])
def test_what_megatron_has_not_is_refused(corpora, fields, message):
    folder, _ = corpora
    with pytest.raises(ConfigError, match=message):
        megatron_run(folder, **fields).dataset()


@pytest.mark.parametrize(
    "own", ["packing: {}", "max_epochs: 2", "max_tokens: 1000", "shuffle: true", "max_share: 0.5"]
)
def test_settings_of_components_are_refused(corpora, own):
    folder, _ = corpora
    config = megatron_config(folder)
    config["components"]["code"] |= yaml.safe_load(own)
    with pytest.raises(
        ConfigError, match=rf"components.code.{own.split(':')[0]} = .*cannot be combined"
    ):
        load(folder, config)


def test_masks_between_documents_are_megatrons(tmp_path, native_shards):
    """All three of its flags: positions, attention and loss as its own masks have them, for every
    position.
    """
    rng = np.random.default_rng(0)
    texts = [[*rng.integers(1, 99, n), 0] for n in rng.integers(3, 40, 60)]
    build([native_shards.write_megatron(tmp_path / "a", texts)], tmp_path / "c", "--eos", "0")
    assert open_cache(tmp_path / "c").num_tokens == sum(map(len, texts))
    config = {
        "compat": "megatron",
        "split_documents": True,
        "seq_len": 17,
        "batch_size": 8,
        "num_steps": 10,
    }
    with one_device(load(tmp_path, {**config, "components": {"a": str(tmp_path / "c")}})) as loader:
        batch = loader.batch_at(2)
    flags = {"reset_position_ids": True, "reset_attention_mask": True, "eod_mask_loss": True}
    for row in range(8):
        masks = ltor_masks(np.asarray(batch.tokens)[row, :-1], 0, **flags)
        segment = np.asarray(batch.segment_ids)[row, :-1]
        blocked = (segment[:, None] != segment) | (np.arange(16)[:, None] < np.arange(16))
        assert (masks.position_ids == np.asarray(batch.position_ids)[row, :-1]).all()
        assert (masks.loss_mask == np.asarray(batch.token_weights)[row, :-1]).all()
        assert (masks.blocked == blocked).all()


# nmoe


def slow_windows(shards: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """nmoe's cursor: windows that do not overlap, over shards, and from the last
    one to the first.
    """
    shard = place = 0
    while True:
        window: list[int] = []
        while len(window) < size:
            some = shards[shard][place : place + size - len(window)]
            window = [*window, *some]
            place = place + len(some)
            if place == len(shards[shard]):
                shard = (shard + 1) % len(shards)
                place = 0
        yield window


def nmoe_run(
    folder: Path, native_shards: ModuleType, shards: dict[str, list[list[int]]], **fields: object
):
    for name, sizes in shards.items():
        texts = [np.array_split(np.array(ids), 3) for ids in sizes]
        files = [
            native_shards.write_nmoe(folder / "shards" / name / f"{k:05}", t)
            for k, t in enumerate(texts)
        ]
        build(files, folder / name)
    return load(
        folder,
        {"compat": "nmoe", "components": {n: {"cache": str(folder / n)} for n in shards}, **fields},
    )


@pytest.mark.parametrize("case", golden("nmoe_loader"), ids=lambda c: f"dp {c['dp_world_size']}")
def test_nmoes_windows_and_slices_are_its_own(case, tmp_path, native_shards):
    shards = {
        f"s{i}": [
            (i * 10_000 + np.arange(sum(sizes))[sum(sizes[:k]) :][:n]).tolist()
            for k, n in enumerate(sizes)
        ]
        for i, sizes in enumerate(case["shard_lens"])
    }
    rows = case["tokens_per_update"] // case["seq_len"]
    world = case["dp_world_size"]
    rank = case["dp_rank"]
    weights = {f"s{i}": w for i, w in enumerate(case["weights"])}
    config = nmoe_run(
        tmp_path,
        native_shards,
        shards,
        seq_len=case["seq_len"] + 1,
        batch_size=rows,
        weights=weights,
    )
    each, more = divmod(rows, world)
    begin = rank * each + min(rank, more)
    with one_device(config) as loader:
        for step, wanted in enumerate(case["steps"]):
            own = np.asarray(loader.batch_at(step).tokens)[begin : begin + each + (rank < more)]
            assert own[:, :-1].tolist() == wanted["inputs"]
            assert own[:, -1].tolist() == wanted["targets_last_col"]


def test_nmoe_goes_on_over_the_end_of_a_source(tmp_path, native_shards):
    """Three wraps, each of which leaves off elsewhere in a window; what comes before a resumed step
    is not read.
    """
    rng = np.random.default_rng(0)
    shards = {
        "a": [list(range(50)), list(range(50, 87))],
        "b": [rng.integers(1000, 2000, n).tolist() for n in (9, 31, 4)],
    }
    config = nmoe_run(tmp_path, native_shards, shards, seq_len=8, batch_size=4, seed=7)
    streams = [slow_windows(x, 8) for x in shards.values()]
    with one_device(config) as loader:
        for step in range(30):  # 60 windows of each: 480 tokens, of 87 and of 44
            batch = loader.batch_at(step)
            sources = np.asarray(batch.source_id).tolist()
            assert sources == [0, 1, 0, 1]
            assert np.asarray(batch.tokens).tolist() == [next(streams[k]) for k in sources]
        last = np.asarray(loader.batch_at(10**6).tokens)  # any step, without those before
    place = 8 * 2 * 10**6 % 87
    assert last[0].tolist() == [(place + k) % 87 for k in range(8)]


def test_nmoes_first_wrap_is_that_of_the_original(tmp_path, native_shards):
    config = nmoe_run(tmp_path, native_shards, {"a": [list(range(87))]}, seq_len=8, batch_size=1)
    with one_device(config) as loader:
        assert np.asarray(loader.batch_at(10).tokens)[0].tolist() == [80, 81, 82, 83, 84, 85, 86, 0]
        assert np.asarray(loader.batch_at(11).tokens)[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    figures = config.accounts()["a"]
    assert (figures.dropped_tokens, figures.repeated_tokens) == (
        0,
        figures.train_tokens - figures.tokens,
    )


def test_nmoes_stages_and_a_config_that_is_written_back(tmp_path, native_shards):
    shards = {"a": [[1] * 40], "b": [[2] * 40]}
    stages = [
        {"name": "pretrain", "weights": {"a": 1}, "tokens": 80},
        {"name": "mid", "weights": {"b": 1}, "tokens": 40},
    ]
    config = nmoe_run(tmp_path, native_shards, shards, seq_len=8, batch_size=3, stages=stages)
    (tmp_path / "again.yaml").write_text(config.to_yaml())
    assert load_config(str(tmp_path / "again.yaml")) == config
    with one_device(config) as loader:
        tokens = [np.asarray(loader.batch_at(step).tokens)[:, 0].tolist() for step in range(5)]
    assert [*chain(*tokens)] == [1] * 10 + [2] * 5
    with pytest.raises(ConfigError, match="compat = 'nmoe': has no validation side"):
        config.validation_datasets()


def test_nmoes_run_ends_with_the_examples_of_its_stages(tmp_path, native_shards):
    """The second stage begins within a step, so that there are fewer steps than stages of whole
    steps would take.
    """
    stages = [{"weights": {"a": 1}, "tokens": 80}, {"weights": {"b": 1}, "tokens": 40}]
    shards = {"a": [[1] * 40], "b": [[2] * 40]}
    config = nmoe_run(tmp_path, native_shards, shards, seq_len=8, batch_size=4, stages=stages)
    assert config.run_steps == 4  # 15 examples
    plan = RunPlan.of(config, hosts=[1])
    assert (plan.steps, plan.ends_early) == (4, None)
    written: dict[str, Any] = {**yaml.safe_load(config.to_yaml()), "num_steps": 4}
    assert load(tmp_path, written).run_steps == 4
    assert (
        load(tmp_path, {**written, "num_steps": 5}).run_steps == 5
    )  # as earlier releases counted them
    with pytest.raises(ConfigError, match="num_steps is 3"):
        load(tmp_path, {**written, "num_steps": 3})
    more = {**written, "components": dict.fromkeys("abc", str(tmp_path / "a"))}
    with pytest.raises(ConfigError, match=r"components.c: is in no stage. Leave it out, or"):
        load(tmp_path, more).dataset()


def test_a_cache_of_no_tokens_is_refused(tmp_path, native_shards):
    config = nmoe_run(tmp_path, native_shards, {"a": [[1, 2]]}, seq_len=8, batch_size=1)
    assert open_cache(str(tmp_path / "a")).num_tokens == 2
    with one_device(config) as loader:  # shorter than a window: it goes round
        assert np.asarray(loader.batch_at(3).tokens).tolist() == [[1, 2] * 4]
