"""Generations: what was appended to a finished cache, each an ordinary cache in its folder, and
their list.

The second generation of a cache is in ``<root>/generations/2``, the third in ``3``;
``<root>/generations.json`` identifies the content of each. That file is written last, so the rest
of a killed append is not a generation; the same append continues it. Documents are numbered across
all generations, and a cache of the first n never changes: a run that started with some continues
with these, whatever is appended later.

Invariants: existing data stays bit-identical; a reader, even after a crash, sees the list before an
append or the list after it. Price: one small read per cache when it is opened, none if a config
says ``generations: 1``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from headrace.errors import CacheCorruptError, CacheError, ConfigError, of_another_version
from headrace.store import files, owned
from headrace.store.cache import TokenCache
from headrace.store.lease import lease
from headrace.store.ledger import prepare_types

GENERATIONS_NAME = "generations.json"
FOLDER = "generations"
_VERSION = 1


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format_version: int
    generations: list[str]  # fingerprint of the content of each, the first that of the cache itself
    digest: str = ""  # of the file, with nothing in this place


prepare_types(_File)


def generation_path(root: str, number: int) -> str:
    """The folder of a generation, counted from 1.

    Example:
        >>> generation_path("caches/web", 1), generation_path("caches/web/", 2)
        ('caches/web', 'caches/web/generations/2')
    """
    return root if number == 1 else files.join(root, FOLDER, str(number))


def cache_of_generation(path: str) -> str:
    """The cache of which a folder is a generation, judging by its name; empty if it is none.

    Example:
        >>> cache_of_generation("caches/web/generations/2"), cache_of_generation("caches/web")
        ('caches/web', '')
    """
    root, _, last = path.rstrip("/").rpartition(f"/{FOLDER}/")
    return root if last.isdecimal() else ""


def read_generations(root: str) -> bytes:
    """The content of the list of a cache's generations, for :func:`generations_of`; empty if there
    is none.
    """
    return files.read_bytes(files.join(root, GENERATIONS_NAME)) or b""


def generations_of(
    cache: TokenCache, read: Callable[[str], bytes] = read_generations
) -> tuple[str, ...]:
    """Fingerprints of the generations of a cache, the first of which is the cache itself.

    Raises:
        CacheCorruptError: the list is damaged, of another version or of another cache.
        CacheError: it cannot be read.

    Example:
        >>> import headrace.testing
        >>> cache = headrace.testing.tiny_cache()
        >>> generations_of(cache) == (cache.fingerprint,)
        True
    """
    if cache.is_virtual or cache.layout.compression == "other":  # of another program
        return (cache.fingerprint,)
    root = files.absolute(cache.path)
    url = files.join(root, GENERATIONS_NAME)

    def refused(problem: str, cure: str) -> CacheCorruptError:
        return CacheCorruptError(problem, field="generations", value=url, cure=cure)

    try:
        raw = read(root)
    except CacheError as error:
        cure = (
            f"{error.cure or ''} Or set components.NAME.generations: 1, with which nobody asks for"
            " it."
        )
        raise type(error)(
            error.problem, field=error.field, value=error.value, cure=cure.strip()
        ) from error
    if not raw:
        return (cache.fingerprint,)
    again = (
        f"Restore it; or delete it, and append again what {files.join(cache.path, FOLDER)} was"
        " built from."
    )
    try:
        content = msgspec.json.decode(raw, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise refused(
            f"is damaged, so that it is not known what was appended ({error})", again
        ) from error
    if content.format_version != _VERSION:
        raise refused(of_another_version(content.format_version, _VERSION), again)
    if content.digest != _digest(content) or not content.generations:
        raise refused("is damaged: its digest is not that of what it holds", again)
    if content.generations[0] != cache.fingerprint:
        problem = (
            f"is of another cache: it names {content.generations[0]}, and this one is"
            f" {cache.fingerprint}"
        )
        raise refused(problem, again)
    return tuple(content.generations)


def _digest(content: _File) -> str:
    blank = msgspec.structs.replace(content, digest="")
    return f"sha256:{hashlib.sha256(msgspec.json.encode(blank)).hexdigest()}"


def wanted_generations(
    cache: TokenCache, wanted: int | None, read: Callable[[str], bytes]
) -> Sequence[str]:
    """Fingerprints of the first ``wanted`` generations of a cache; None: of all. With 1, the list
    is not read.

    Raises:
        ConfigError: there are fewer; else as for :func:`generations_of`.
    """
    if wanted == 1:
        return (cache.fingerprint,)
    generations = generations_of(cache, read)
    if wanted is not None and not 1 <= wanted <= len(generations):
        cure = f"Give 1 to {len(generations)}" if generations[1:] else "Give 1"
        raise ConfigError(
            f"is more than there are: {cache.path} has {len(generations)}",
            field="generations",
            value=wanted,
            cure=f"{cure}; headrace build SOURCE --output {cache.path} --append makes another.",
        )
    return generations[:wanted]


def appended_to(caches: Mapping[str, Sequence[TokenCache]]) -> dict[str, list[int]]:
    """Number of generations of the components' caches, by component, for those with more than one.

    Example:
        >>> import headrace.testing
        >>> appended_to({"web": [headrace.testing.tiny_cache()], "made": []})
        {}
    """
    counts = {name: [*several[0].generations] for name, several in caches.items() if several}
    return {name: count for name, count in counts.items() if max(count) > 1}


def check_generation(cache: TokenCache, fingerprint: str) -> TokenCache:
    """The cache, if its content is that in the list of generations; raises CacheCorruptError
    otherwise.
    """
    if cache.fingerprint != fingerprint:
        raise CacheCorruptError(
            f"is not the generation that was appended: it is {cache.fingerprint}, and"
            f" {fingerprint} was",
            field="cache",
            value=cache.path,
            cure="Restore its folder.",
        )
    return cache


def add_generation(cache: TokenCache, number: int, appended: TokenCache) -> None:
    """Adds a finished cache in the folder of a generation to the list, unless it is there already.

    Raises:
        CacheError: another one was appended in the meantime; another process is writing to the
            cache; it cannot be written.
    """
    root = files.absolute(cache.path)
    cure = "Run the same command again when the other one is done."
    with lease(root, field="output", cure=cure) as held_lease:
        generations = generations_of(cache)
        if generations[number - 1 : number] == (appended.fingerprint,):
            return
        if len(generations) != number - 1:
            problem = (
                f"has {len(generations)} generations by now, and this one was to be number {number}"
            )
            raise CacheError(
                problem, field="output", value=cache.path, cure="Run the same command again."
            )
        content = _File(_VERSION, [*generations, appended.fingerprint])
        content.digest = _digest(content)
        held_lease.confirm()
        files.write_atomic(files.join(root, GENERATIONS_NAME), msgspec.json.encode(content) + b"\n")


def generations_problem(root: str) -> tuple[int, str]:
    """Number of generations of a cache, and the problem of their list; empty if there is none.

    Example:
        >>> import headrace.testing
        >>> generations_problem(headrace.testing.tiny_cache().path)
        (1, '')
    """
    try:
        cache = TokenCache.open(root)
    except CacheError:  # whoever looks at the cache itself says what is wrong with it
        return 1, ""
    try:
        generations = generations_of(cache)
    except CacheError as error:
        return 1, error.problem
    for number, content in enumerate(generations[1:], start=2):
        try:
            check_generation(TokenCache.open(generation_path(root, number)), content)
        except CacheError as error:
            return number - 1, f"names generation {number}, which {error.problem}"
    return len(generations), ""


def remove_generations(root: str) -> None:
    """Deletes what was appended to a cache that is rebuilt, the list first."""
    owned.remove_tree(files.join(root, GENERATIONS_NAME))
    owned.remove_tree(files.join(root, FOLDER))
