"""What TensorStore says, and what is done about it."""

import pytest

from headrace.store.failures import failure_of, reason, transient


@pytest.mark.parametrize(
    ("said", "again"),
    [
        ("UNAVAILABLE: x", True),
        ("ABORTED: All 1 retry attempts failed: Too Many Requests", True),
        ("DEADLINE_EXCEEDED: x", True),
        ("PERMISSION_DENIED: Forbidden", False),
        ("NOT_FOUND: bucket", False),
        ("Bad Request [http_response_code='400']", False),
        ("OUT_OF_RANGE: x", False),
        ("DATA_LOSS: Digest mismatch", False),
    ],
)
def test_what_is_worth_another_try(said, again):
    assert transient(ValueError(said)) is again


def test_reasons_are_short():
    said = (
        "ABORTED: All 1 retry attempts failed: Unknown [http_response_body='x\\n'] [source"
        " locations='a:1\nb:2'] "
    )
    assert (
        reason(ValueError(said + "[http_response_code='503']"))
        == "ABORTED: Service Unavailable, HTTP status 503"
    )
    assert reason(ValueError("Unknown [http_response_code='599']")) == "Unknown, HTTP status 599"
    assert reason(ValueError("")) == "ValueError"
    assert reason(ValueError("NOT_FOUND: x\nmore")) == "NOT_FOUND: x"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (
            "ABORTED: All 1 retry attempts failed: Service Unavailable [http_response_code='503']",
            "transient",
        ),
        ("PERMISSION_DENIED: Forbidden [http_response_code='403']", "refused"),
        (
            "PERMISSION_DENIED: Unauthorized [http_response_body='x\\n']"
            " [http_response_code='401']",
            "refused",
        ),
        (
            "FAILED_PRECONDITION: Unknown [source locations='a\nb'] [http_response_code='307']",
            "refused",
        ),
        ("FAILED_PRECONDITION: Requested byte range [-20, ?) was ignored by server", "damaged"),
        ("FAILED_PRECONDITION: Expected Content-Range header with HTTP 206 response", "damaged"),
        ("OUT_OF_RANGE: Requested byte range is not valid [http_response_code='416']", "damaged"),
        ("NOT_FOUND: etag not found in response headers", "damaged"),
        ("Expecting value: line 1 column 1 (char 0)", "damaged"),
    ],
)
def test_kinds_of_failures(said, kind):
    assert failure_of(ValueError(said)) == kind
