"""As whom a store is asked: the name of the credential, never what is in it."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from fsspec.core import split_protocol


def asked_as(url: str, environment: Mapping[str, str] = os.environ) -> str:
    """Which credential a request for ``url`` carries, in words.

    Args:
        url: Path or URL.
        environment: The variables of the process.

    Example:
        >>> asked_as("s3://bucket/x", {"AWS_ACCESS_KEY_ID": "AKIA..."})
        'the key in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY'
        >>> asked_as("https://user:secret@host/x")
        'the user named in the URL'
    """
    scheme = split_protocol(url)[0]
    if scheme in ("s3", "s3a"):
        return _asked_s3_as(environment)
    if scheme in ("gs", "gcs"):
        return _asked_gcs_as(environment)
    if scheme in ("http", "https"):
        return "the user named in the URL" if urlsplit(url).username else "nobody (web servers are asked with no login)"
    return f"the user {_user()} of this machine"


def _asked_s3_as(environment: Mapping[str, str]) -> str:
    if environment.get("AWS_ACCESS_KEY_ID"):
        return "the key in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if profile := environment.get("AWS_PROFILE"):
        return f"the profile {profile!r} named in AWS_PROFILE"
    file = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()
    return f"the default profile of {file}" if file.exists() else "the role of this machine, or nobody if it has none"


def _asked_gcs_as(environment: Mapping[str, str]) -> str:
    if environment.get("STORAGE_EMULATOR_HOST", "default") not in ("", "default"):
        return "nobody (STORAGE_EMULATOR_HOST is set)"
    if environment.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return "the key file named in GOOGLE_APPLICATION_CREDENTIALS"
    folder = Path(environment.get("CLOUDSDK_CONFIG") or "~/.config/gcloud").expanduser()
    file = folder / "application_default_credentials.json"
    return f"the login kept in {file}" if file.exists() else "the role of this machine, or nobody if it has none"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry for this number, as in many containers
        return str(os.getuid())
