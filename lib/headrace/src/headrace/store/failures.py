"""What TensorStore's errors mean: whether to ask again, and how to say it in a line."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

_CODE = r"\[(?:http_response_code='|HTTP code )"  # of TensorStore 0.1.81, and of 0.1.84
_NOTES = re.compile(
    rf"\s*(?:{_CODE}|\[(?:source locations|http_response_body|curl_code|tensorstore_spec)=).*", re.DOTALL
)
_STATUS = re.compile(rf"{_CODE}(\d+)'?\]")
_OWN_RETRIES = "All 1 retry attempts failed: "
_TRANSIENT = re.compile(r"(UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|RESOURCE_EXHAUSTED|CANCELLED|UNKNOWN|INTERNAL)\b")


_REFUSED = re.compile(rf"(PERMISSION_DENIED|UNAUTHENTICATED)\b|.*{_CODE}3", re.DOTALL)
Failure: TypeAlias = Literal["transient", "refused", "damaged"]


class StoreFailedError(OSError):
    """The store did not give what was asked for, and was asked as often as the policy says."""


class DamagedAnswerError(StoreFailedError):
    """What the store gives is missing or not what was stored."""


def transient(error: BaseException) -> bool:
    """Whether an error of TensorStore is worth another try. (It retries 501 of GCS too; that is its own affair.)

    Example:
        >>> transient(ValueError("ABORTED: All 1 retry attempts failed: Service Unavailable"))
        True
        >>> transient(ValueError("PERMISSION_DENIED: Forbidden"))
        False
    """
    return isinstance(error, TimeoutError) or _TRANSIENT.match(str(error)) is not None


def failure_of(error: BaseException) -> Failure:
    """What kind of failure an error of TensorStore, or of decoding, is.

    Example:
        >>> failure_of(ValueError("FAILED_PRECONDITION: Unknown [http_response_code='302']"))
        'refused'
        >>> failure_of(ValueError("FAILED_PRECONDITION:  [HTTP code 302] [source locations='driver.cc:335']"))
        'refused'
        >>> failure_of(ValueError("FAILED_PRECONDITION: Requested byte range [0, 9) was ignored by server"))
        'damaged'
    """
    if transient(error):
        return "transient"
    return "refused" if _REFUSED.match(str(error)) else "damaged"


def reason(error: BaseException) -> str:
    """What TensorStore says, with the HTTP status, without where in its source it says so.

    Example:
        >>> reason(ValueError("NOT_FOUND: chunk {1} is missing [source locations='driver/read.cc:345']"))
        'NOT_FOUND: chunk {1} is missing'
        >>> reason(ValueError("ABORTED: All 1 retry attempts failed: Unknown [http_response_code='503']"))
        'ABORTED: Unknown, HTTP status 503'
    """
    status = _STATUS.search(str(error))
    lines = _NOTES.sub("", str(error)).replace(_OWN_RETRIES, "").splitlines()
    message = lines[0].strip(" :") if lines else type(error).__name__
    return f"{message}, HTTP status {status[1]}" if status else message
