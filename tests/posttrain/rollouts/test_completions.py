"""Groups from a server over HTTP: a real one on loopback, in every form of answer, and in every way
to fail.
"""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace_posttrain import CompletionsSampler, Prompt, RLDataset, SamplerError
from headrace_posttrain.rollouts.dataset import RLSettings

PROMPT = Prompt(0, 0, np.array([5, 6, 7]))


def choices(request, ids="token_ids", **more):
    """Of n completions, the k-th of which is k + 1 tokens, the last of them the
    prompt's last id.
    """
    answer = []
    for k in range(request["n"]):
        tokens = [*range(10, 10 + k), request["prompt"][-1]]
        said = {"tokens": [f"token_id:{t}" for t in tokens], "token_logprobs": [-0.5 - k] * (k + 1)}
        choice = {
            "index": k,
            "text": f"text {k}",
            "finish_reason": "length" if k == 2 else "stop",
            "logprobs": said,
        }
        answer.append(choice | ({} if ids is None else {ids: tokens}) | more)
    return {"choices": answer[::-1]}


@pytest.fixture
def server():
    """Answers as ``say`` does: a status and a body. Has the requests, and what became of
    connections.
    """
    facts = SimpleNamespace(
        requests=[],
        headers=[],
        say=lambda request: (200, choices(request)),
        closed=threading.Event(),
    )

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            facts.requests.append((self.path, request))
            facts.headers.append(dict(self.headers))
            answer = facts.say(request)
            if answer is None:  # until the other side closes
                self.rfile.read(1)
                facts.closed.set()
                return
            status, body = answer
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format, *args):  # noqa: A002 - the name of the class above
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=[0.02])
        thread.start()
        facts.url = f"http://127.0.0.1:{httpd.server_address[1]}/v1"
        yield facts
        httpd.shutdown()
        thread.join()


def right(prompt, completion):
    return float(completion.text == "text 0")


def sampler(server, score=right, **options):
    return CompletionsSampler(server.url, score, **{"group_size": 3, "max_tokens": 4} | options)


def sample(made):
    return asyncio.run(made.sample_and_score(PROMPT))


@pytest.mark.parametrize("ids", ["token_ids", "response_token_ids", None])
def test_a_group_has_the_ids_and_log_probs_that_the_server_sampled(server, ids):
    server.say = lambda request: (200, choices(request, ids))
    made = sampler(
        server, model="tiny", options={"temperature": 0.5}, headers={"Authorization": "Bearer 1"}
    )
    made.version = 4
    group = sample(made)
    assert [row.tolist() for row in group.tokens] == [
        [5, 6, 7, 7],
        [5, 6, 7, 10, 7],
        [5, 6, 7, 10, 11, 7],
    ]
    assert group.log_probs is not None
    assert group.truncated is not None
    assert [row.tolist() for row in group.log_probs] == [[-0.5], [-1.5, -1.5], [-2.5] * 3]
    assert group.rewards.tolist() == [1.0, 0.0, 0.0]
    assert group.truncated.tolist() == [False, False, True]
    assert (group.prompt_len, group.policy_version) == (3, 4)
    ((path, request),) = server.requests
    assert path == "/v1/completions"
    expected = {
        "prompt": [5, 6, 7],
        "n": 3,
        "max_tokens": 4,
        "model": "tiny",
        "temperature": 0.5,
        "logprobs": 1,
    }
    assert expected.items() <= request.items()
    assert request["return_token_ids"] is True
    assert server.headers[0]["Authorization"] == "Bearer 1"


def test_scores_may_be_async_and_others_run_beside_the_event_loop(server):
    async def later(prompt, completion):
        await asyncio.sleep(0)
        return prompt.tokens[-1] == completion.tokens[0]

    assert sample(sampler(server, later)).rewards.tolist() == [1.0, 0.0, 0.0]
    threads = []
    sample(
        sampler(
            server, lambda prompt, completion: threads.append(threading.current_thread()) or 0.0
        )
    )
    assert threading.main_thread() not in threads


def test_a_dataset_trains_on_them_with_many_requests_at_once(server):
    settings = RLSettings(
        seq_len=16, groups_per_batch=4, seed=0, in_flight=8, max_staleness=1, retries=1
    )
    prompts = [np.array([n, n + 1]) for n in range(9)]
    with RLDataset(prompts, sampler(server), settings) as dataset:
        batch = dataset.next_batch(0)
        assert batch.log_probs[batch.label_mask].min() == -2.5
        assert dataset.metrics(0)["truncated_share"] == pytest.approx(1 / 3)


TEMPORARY = [(503, b"loading"), (429, b""), (500, b'{"error": "out of memory"}')]


@pytest.mark.parametrize("answer", TEMPORARY)
def test_what_may_pass_is_asked_again(server, answer):
    answers = [answer, None]

    def say(request):
        return answers.pop(0) or (200, choices(request)) if answers else (200, choices(request))

    server.say = say
    settings = RLSettings(seq_len=16, groups_per_batch=1, seed=0, retries=1)
    with RLDataset([PROMPT.tokens], sampler(server), settings) as dataset:
        dataset.next_batch(0)
        assert dataset.counts["retries"] == 1
    answers[:] = [answer] * 2
    with pytest.raises(SamplerError, match=rf"{server.url}/completions.*HTTP {answer[0]}"):
        sample(sampler(server))


FINAL = [
    (400, b'{"message": "max_tokens is too large"}', "max_tokens is too large"),
    (401, b"", "Authorization"),
    (404, b"<html>Not Found</html>", "up to /v1"),
    (301, b"", "HTTP 301"),
    (200, b"<html>hello</html>", "ids and log prob"),
    (200, {"choices": []}, "gave 0 completions"),
    (
        200,
        {"choices": [{"index": 0, "text": "a", "finish_reason": "stop", "logprobs": None}]},
        "ids and log prob",
    ),
]


@pytest.mark.parametrize(("status", "body", "said"), FINAL)
def test_what_will_not_pass_is_not_asked_again_and_named_with_its_cure(server, status, body, said):
    server.say = lambda request: (status, body)
    settings = RLSettings(seq_len=16, groups_per_batch=1, seed=0, retries=5)
    with (
        RLDataset([PROMPT.tokens], sampler(server), settings) as dataset,
        pytest.raises(ConfigError, match=said) as error,
    ):
        dataset.next_batch(0)
    assert server.url in str(error.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_ids": [1]},
        {"token_ids": ["a", "b", "c"]},
        {"logprobs": {"token_logprobs": [None] * 3, "tokens": []}},
        {"logprobs": {"token_logprobs": [float("-inf")] * 3, "tokens": []}},
        {"logprobs": {"tokens": ["a"]}, "token_ids": None},
        {"index": None},
        {"logprobs": 3},
    ],
)
def test_answers_that_are_not_as_documented_are_errors_that_name_the_server(server, wrong):
    server.say = lambda request: (200, choices(request, **wrong))
    with pytest.raises(ConfigError, match=server.url):
        sample(sampler(server))


def test_an_abort_by_the_server_is_asked_again(server):
    server.say = lambda request: (200, choices(request, finish_reason="abort"))
    with pytest.raises(SamplerError, match="aborted"):
        sample(sampler(server))


def test_a_server_that_is_not_there_and_one_that_is_none(server):
    async def hang_up(reader, writer):
        await reader.read(1)
        writer.write(b"220 mail.example.com ESMTP\r\n\r\n")
        writer.close()

    async def main():
        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as other:
            url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
            with pytest.raises(
                SamplerError, match=r"cannot be reached, or broke off.*Start the server"
            ):
                await CompletionsSampler(url, right, group_size=1, max_tokens=1).sample_and_score(
                    PROMPT
                )
        with pytest.raises(SamplerError, match="cannot be reached"):
            await CompletionsSampler(url, right, group_size=1, max_tokens=1).sample_and_score(
                PROMPT
            )

    asyncio.run(main())


def test_an_answer_that_does_not_come_ends_with_the_time_and_closes_the_connection(server):
    server.say = lambda request: None
    with pytest.raises(SamplerError, match=r"within 0\.05 s"):
        sample(sampler(server, timeout_s=0.05))
    assert server.closed.wait(60)


def test_a_call_that_is_aborted_closes_its_connection(server):
    server.say = lambda request: None if request["prompt"] == [1] else (200, choices(request))
    settings = RLSettings(
        seq_len=16,
        groups_per_batch=1,
        seed=0,
        prompt_order="listed",
        in_flight=2,
        max_staleness=1,
        stragglers="abort",
    )
    prompts = [np.array([n + 1]) for n in range(50)]
    made = sampler(server)
    with RLDataset(prompts, made, settings) as dataset:
        for step in range(5):  # the first prompt's call is two versions old at step 2
            made.version = step
            dataset.next_batch(step, policy_version=step)
        assert server.closed.wait(60)
        assert dataset.totals["aborted_groups"] >= 1


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://a", "http://", "http://a:b", "http://a:99999"]
)
def test_a_url_that_is_none_is_named(url):
    with pytest.raises(ConfigError, match="url"):
        CompletionsSampler(url, right, group_size=1, max_tokens=1)


@pytest.mark.parametrize("wrong", [{"group_size": 0}, {"max_tokens": 0}, {"timeout_s": 0.0}])
def test_numbers_that_cannot_be_are_named(server, wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        sampler(server, **wrong)


def test_a_score_that_is_no_number_is_named(server):
    with pytest.raises(ConfigError, match="score"):
        sample(sampler(server, lambda prompt, completion: "good"))
