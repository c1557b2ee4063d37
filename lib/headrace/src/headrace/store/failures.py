"""Interprets TensorStore's errors: whether to retry, and how to say it in one line."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Literal, TypeAlias

_CODE = r"\[(?:http_response_code='|HTTP code )"  # of TensorStore 0.1.81, and of 0.1.84
_NOTES = re.compile(
    rf"\s*(?:{_CODE}|\[(?:source locations|http_response_body|curl_code|tensorstore_spec)=).*",
    re.DOTALL,
)
_STATUS = re.compile(rf"{_CODE}(\d+)'?\]")
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_OWN_RETRIES = "All 1 retry attempts failed: "
_TRANSIENT = re.compile(
    r"(UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|RESOURCE_EXHAUSTED|CANCELLED|UNKNOWN|INTERNAL)\b"
)
_MISSING = re.compile(r"NOT_FOUND\b(?!: etag)")
_REFUSED = re.compile(rf"(PERMISSION_DENIED|UNAUTHENTICATED)\b|.*{_CODE}3", re.DOTALL)
Failure: TypeAlias = Literal["transient", "missing", "refused", "damaged"]


class StoreFailedError(OSError):
    """The store failed, after all retries that the policy allows."""


class DamagedAnswerError(StoreFailedError):
    """The store's answer is not what was stored."""


class MissingAnswerError(DamagedAnswerError):
    """The store says that there is no such file."""


def transient(error: BaseException) -> bool:
    """Whether an error of TensorStore is worth a retry. (TensorStore itself also retries 501 of
    GCS.)

    Example:
        >>> transient(ValueError("ABORTED: All 1 retry attempts failed: Service Unavailable"))
        True
        >>> transient(ValueError("PERMISSION_DENIED: Forbidden"))
        False
    """
    return isinstance(error, TimeoutError) or _TRANSIENT.match(str(error)) is not None


def failure_of(error: BaseException) -> Failure:
    """The kind of failure of an error from TensorStore or from decoding.

    Example:
        >>> failure_of(ValueError("FAILED_PRECONDITION: Unknown [http_response_code='302']"))
        'refused'
        >>> failure_of(
        ...     ValueError(
        ...         "FAILED_PRECONDITION:  [HTTP code 302] [source locations='driver.cc:335']"
        ...     )
        ... )
        'refused'
        >>> failure_of(
        ...     ValueError("FAILED_PRECONDITION: Requested byte range [0, 9) was ignored by server")
        ... )
        'damaged'
    """
    if transient(error):
        return "transient"
    if _MISSING.match(str(error)):
        return "missing"
    return "refused" if _REFUSED.match(str(error)) else "damaged"


def throttles(error: BaseException) -> bool:
    """Whether the store asked for fewer requests: with a status that may have a ``Retry-After``."""
    status = _STATUS.search(str(error))
    return status is not None and status[1] in ("429", "503")


def reason(error: BaseException) -> str:
    """TensorStore's message with the HTTP status, without its source location.

    Example:
        >>> reason(
        ...     ValueError(
        ...         "NOT_FOUND: chunk {1} is missing [source locations='driver/read.cc:345']"
        ...     )
        ... )
        'NOT_FOUND: chunk {1} is missing'
        >>> reason(
        ...     ValueError(
        ...         "ABORTED: All 1 retry attempts failed: Unknown [http_response_code='503']"
        ...     )
        ... )
        'ABORTED: Service Unavailable, HTTP status 503'
    """
    status = _STATUS.search(str(error))
    lines = _NOTES.sub("", str(error)).replace(_OWN_RETRIES, "").splitlines()
    message = lines[0].strip(" :") if lines else type(error).__name__
    if status is None:
        return message
    if int(status[1]) in _PHRASES:  # some releases know few of them
        message = message.replace("Unknown", _PHRASES[int(status[1])])
    return f"{message}, HTTP status {status[1]}"
