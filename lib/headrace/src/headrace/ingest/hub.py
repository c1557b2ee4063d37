"""Tokenizers by name, from the Hugging Face Hub: ``hf://OWNER/NAME``, ``hf://OWNER/NAME@REVISION``.

A bare name is looked up there too if no file has that path, and the log says so. Downloads stay in
the Hub's own cache on this machine (``HF_HOME``), shared with other programs; ``HF_ENDPOINT``,
``HF_TOKEN`` and ``HF_HUB_OFFLINE`` have their usual meaning. The commit is recorded: caches name
``hf://OWNER/NAME@COMMIT`` and contain a copy of the file, so reading a cache never downloads
anything.
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from headrace.errors import ConfigError, did_you_mean
from headrace.ingest.records import one_line
from headrace.store import files

SCHEME = "hf://"
_NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*(?:/[\w.-]+)?)(?:@(?P<revision>[\w./-]+))?")
_FILES = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
logger = logging.getLogger(__name__)


class HubTokenizer(NamedTuple):
    """A tokenizer's files on this machine.

    Attributes:
        folder: Their folder.
        path: ``hf://OWNER/NAME@COMMIT``.
    """

    folder: str
    path: str


def find_hub_tokenizer(path: str) -> HubTokenizer | None:
    """The files of a tokenizer on the Hub, downloaded if necessary; None if ``path`` does not name
    one.

    Raises:
        ConfigError: the Hub has no such model, or no tokenizer.json for it; it cannot be reached,
            or requires a login.

    Example:
        >>> (
        ...     find_hub_tokenizer("tokenizers/llama3/tokenizer.json") is None,
        ...     find_hub_tokenizer("gs://b/llama3") is None,
        ... )
        (True, True)
    """
    match = _NAME.fullmatch(path.removeprefix(SCHEME))
    named = path.startswith(SCHEME)
    if not named and (match is None or path.endswith(".json") or files.exists(path)):
        return None
    if match is None:
        cure = "Write hf://OWNER/NAME, or hf://OWNER/NAME@REVISION."
        raise ConfigError("is no name of a model", field="tokenizer", value=path, cure=cure)
    folder = _fetch(path, match["repo"], match["revision"])
    commit = os.path.basename(folder)
    if not named:
        logger.warning(
            "tokenizer %s: nothing lies at that path; taken from the Hugging Face hub", path
        )
    if not os.path.exists(os.path.join(folder, _FILES[0])):
        raise ConfigError(
            "has no tokenizer.json on the Hugging Face hub",
            field="tokenizer",
            value=path,
            cure='Have transformers write one: python -c "from transformers import AutoTokenizer;'
            f" AutoTokenizer.from_pretrained('{match['repo']}').save_pretrained('tokenizer')\","
            " then -t tokenizer.",
        )
    return HubTokenizer(folder, f"{SCHEME}{match['repo']}@{commit}")


@cache
def _fetch(path: str, repo: str, revision: str | None) -> str:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if re.fullmatch(
        "[0-9a-f]{40}", revision or ""
    ):  # a commit never changes: if it is here, no request is needed
        with suppress(OSError):
            folder = snapshot_download(repo, revision=revision, local_files_only=True)
            if os.path.exists(os.path.join(folder, _FILES[0])):
                return folder
    cure = "Check the name, or give a tokenizer.json, a folder that holds one, or `bytes`."
    try:
        return snapshot_download(
            repo, revision=revision, allow_patterns=_FILES, endpoint=os.environ.get("HF_ENDPOINT")
        )
    except GatedRepoError as error:
        problem = "is gated on the Hugging Face hub"
        cure = (
            f"Ask for access at huggingface.co/{repo}, then run `hf auth login`, or set HF_TOKEN."
        )
        cause: Exception = error
    except RepositoryNotFoundError as error:
        problem = "is neither a file or folder here nor a model of the Hugging Face hub"
        cause = error
        cure += " If it is private: `hf auth login`."
    except RevisionNotFoundError as error:
        problem = "has no such revision on the Hugging Face hub"
        cause = error
    except (
        OSError,
        ValueError,
        HFValidationError,
    ) as error:  # no connection, offline, an answer that is none
        why = (
            "HF_HUB_OFFLINE is set"
            if constants.HF_HUB_OFFLINE
            else one_line(error).split(". ")[0].rstrip(".")
        )
        problem = f"is not here, and the Hugging Face hub cannot be asked ({why})"
        if (suggestion := did_you_mean(repo, ("bytes", "ids:50257"))).startswith("Did"):
            cure = f"{suggestion} {cure}"
        cause = error
    raise ConfigError(problem, field="tokenizer", value=path, cure=cure) from cause
