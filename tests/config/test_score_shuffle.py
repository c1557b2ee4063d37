"""``shuffle: {by: NAME}``: the rows of a component by the score of their documents."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from typer.testing import CliRunner

from headrace import ComponentConfig, DataLoader, LmDataConfig, load_config
from headrace.analysis.check.findings import findings
from headrace.analysis.check.plan import RunPlan
from headrace.cli.application import application
from headrace.data.attributes import AttributeConfig
from headrace.data.dataset import rows_of_step
from headrace.data.document_numbers import DocumentNumbers
from headrace.data.provenance import spans_of_rows
from headrace.data.row_scores import row_scores
from headrace.data.token_seq import TokenSeqDataset
from headrace.errors import ConfigError
from headrace.mix.schedule import BatchSchedule
from headrace.order import ScoreShuffleConfig
from headrace.pack import PackingConfig
from headrace.store import TokenCache
from headrace.testing import tiny_cache

DOCUMENTS = 3000
SCORES = np.random.default_rng(0).random(DOCUMENTS)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> TokenCache:
    folder = tmp_path_factory.mktemp("scores")
    np.save(folder / "quality.npy", SCORES)
    return tiny_cache(folder / "cache", documents=DOCUMENTS)


def config_of(cache: TokenCache, **fields: object) -> LmDataConfig:
    quality = AttributeConfig(str(cache.path).replace("cache", "quality.npy"))
    shuffle = ScoreShuffleConfig("quality", steps=6, open_blocks=64)
    component = {"attributes": {"quality": quality}, "shuffle": shuffle, **fields}
    web = ComponentConfig(cache.path, **component)  # pyright: ignore[reportArgumentType]
    return LmDataConfig({"web": web}, seq_len=32, batch_size=16, num_steps=400)


def mean_scores(config: LmDataConfig, steps: range) -> np.ndarray:
    """The score of each row of some steps, from the documents that provenance finds in it."""
    dataset = config.dataset()
    scores = []
    for step in steps:
        rows = rows_of_step(dataset, BatchSchedule(16), step)
        spans = spans_of_rows(rows)
        sums = np.bincount(spans.row, spans.size * SCORES[spans.document], minlength=len(rows))
        scores.append(sums / np.bincount(spans.row, spans.size, minlength=len(rows)))
    return np.concatenate(scores)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"where": "quality > 0.3 and length > 5"},
        {"packing": PackingConfig()},
        {"validation": 0.1},
    ],
    ids=["stream", "where", "packed", "held out"],
)
def test_an_epoch_goes_from_step_to_step(cache, fields, descending):
    shuffle = ScoreShuffleConfig("quality", steps=6, open_blocks=64, descending=descending)
    config = config_of(cache, **fields, shuffle=shuffle)
    rows = config.dataset().rows_of_pass or len(config.train_datasets()["web"])
    steps = rows // 16
    scores = mean_scores(config, range(steps))
    if descending:
        scores = -scores
    bounds = np.arange(7) * rows // 6
    within = [scores[first // 16 * 16 + 16 : stop // 16 * 16] for first, stop in pairwise(bounds)]
    for low, high in pairwise(within):
        assert low.max() <= high.min() + 1e-9
    assert (np.diff(within[2]) < 0).any()  # shuffled in itself


def test_a_later_start_has_the_same_rows(cache):
    config = config_of(cache)
    (train,) = config.train_datasets().values()
    far = len(train) // 16 + 5  # in the second epoch
    loader: DataLoader = config.loader()
    ahead = [next(batches).tokens for batches in [loader.iter_from_step(far)] for _ in range(3)]
    again = config.loader()
    for number, tokens in enumerate(ahead):
        assert (again.batch_at(far + number).tokens == tokens).all()
    assert (ahead[0] != again.batch_at(5).tokens).any()  # the same step, mixed in another way


def test_check_says_what_it_reads(cache, tmp_path):
    config = config_of(cache)
    (finding,) = findings(RunPlan.of(config, hosts=[1]))
    assert (finding.rule, finding.field) == ("reads_by_score", "components.web.shuffle.steps")
    cured = finding.cure.rpartition(" ")[2].rstrip(".")
    (tmp_path / "run.yaml").write_text(config.to_yaml())
    done = CliRunner().invoke(
        application(), ["config", "check", str(tmp_path / "run.yaml"), cured, "--json"]
    )
    assert done.exit_code == 0, done.output
    for command in (["config", "simulate"], ["run", "where"]):
        more = ["--step", "3"] if command[0] == "run" else []
        done = CliRunner().invoke(application(), [*command, str(tmp_path / "run.yaml"), *more])
        assert done.exit_code == 0, done.output


def test_other_scores_are_another_run(cache, tmp_path):
    config = config_of(cache)
    np.save(tmp_path / "other.npy", SCORES[::-1])
    other = config_of(cache, attributes={"quality": AttributeConfig(f"{tmp_path}/other.npy")})
    described = config.dataset().describe()
    assert described == config_of(cache).dataset().describe()
    assert described != other.dataset().describe()


def test_what_cannot_be_is_refused(cache):
    unknown = config_of(cache, shuffle=ScoreShuffleConfig("qality"))
    phases = dataclasses.replace(config_of(cache), seq_len={0: 32, 100: 64})
    missing = config_of(cache, attributes=None)
    for config in (unknown, phases, missing):
        with pytest.raises(ConfigError) as refused:
            config.dataset()
        assert refused.value.field == "components.web.shuffle.by"
        assert refused.value.cure
    component = ComponentConfig("no/cache", expected_tokens=1e6, shuffle=ScoreShuffleConfig("q"))
    with pytest.raises(ConfigError) as refused:
        RunPlan.of(LmDataConfig({"web": component}, num_steps=10))
    assert refused.value.field == "components.web.shuffle.by"


def test_scores_of_rows_are_means_whatever_other_documents_have(cache, tmp_path):
    lengths = cache.lengths()
    rows = TokenSeqDataset(cache, seq_len=32)

    def scores_of(documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        np.save(tmp_path / "scores.npy", documents)
        scores = row_scores(rows, DocumentNumbers(cache), f"{tmp_path}/scores.npy", "by")
        of_tokens = np.repeat(documents, lengths)[: len(rows) * 32]
        return scores, of_tokens.reshape(-1, 32)

    scores, of_tokens = scores_of(SCORES)
    assert np.allclose(scores, of_tokens.mean(1), rtol=1e-12)
    for missing in (-1e30, np.finfo(np.float64).min):
        blurred, _ = scores_of(np.where(np.arange(DOCUMENTS) == 5, missing, SCORES))
        begin, stop = lengths[:5].sum() // 32, -(-lengths[:6].sum() // 32)
        assert (np.delete(blurred, np.s_[begin:stop]) == np.delete(scores, np.s_[begin:stop])).all()
    equal, _ = scores_of(np.full(DOCUMENTS, 0.1))
    assert (equal == 0.1).all()  # so rows stay as they are stored, and each chunk is read once


@pytest.mark.parametrize("field", ["shuffle", "buckets"])
def test_a_number_that_has_to_be_named_cannot_be_null(field: str):
    with pytest.raises(ConfigError, match="is missing") as refused:
        load_config(overrides=[f"components.web={{cache: web, {field}: {{by: null}}}}"])
    assert (refused.value.field, refused.value.cure) == (
        f"components.web.{field}.by",
        "Give a text.",
    )
