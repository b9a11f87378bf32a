"""Files over HTTP with nothing but the standard library, continued where an earlier try ended."""

from __future__ import annotations

import contextlib
import functools
import gzip
import http.client
import shutil
import ssl
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

TIMEOUT = 30.0
"""Seconds that a server may be silent."""
CONNECTIONS = 5
"""How often a server may break the connection."""
CHUNK = 1 << 16


def download(url: str, part: Path) -> bool:
    """Bring a file to `part`, after what is already there; a broken connection that brought something is renewed.

    Returns whether the file came in one piece. What came before an error stays in `part` for the next call.
    """
    for left in reversed(range(CONNECTIONS)):
        before = _size(part)
        try:
            return _continue(url, part)
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException):
            if not left or _size(part) <= before:
                raise
    raise AssertionError


def unpack(archive: Path, target: Path) -> None:
    """Decompress a .gz file; ValueError if it is damaged."""
    try:
        with gzip.open(archive) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"damaged archive: {error}") from None


def _continue(url: str, part: Path) -> bool:
    """One request for what `part` lacks; whether the answer was the whole file."""
    have = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT, context=_certificates())
    except urllib.error.HTTPError as error:
        if error.code == 416:  # there is nothing after what is here
            return False
        raise
    with response:
        resumed = have > 0 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if have and response.status == 206 and not resumed:  # another range than the one that was asked for
            part.unlink()
            return _continue(url, part)
        length = response.headers.get("Content-Length")
        start = have if resumed else 0
        total = start + int(length) if length is not None else None
        with part.open("ab" if resumed else "wb") as file, _progress(part.name, start, total) as advance:
            while (total is None or file.tell() < total) and (chunk := response.read1(CHUNK)):
                file.write(chunk)
                file.flush()  # what has come is kept, whatever happens next
                advance(len(chunk))
    if total is not None and _size(part) != total:
        raise OSError(f"the connection ended after {_size(part):,} of {total:,} bytes")
    return not resumed


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@functools.cache
def _certificates() -> ssl.SSLContext:
    """The system's and, where it is installed, certifi's: python.org's Python for macOS starts with none."""
    context = ssl.create_default_context()
    with contextlib.suppress(ImportError):
        import certifi

        context.load_verify_locations(certifi.where())
    return context


@contextlib.contextmanager
def _progress(name: str, start: int, total: int | None) -> Iterator[Callable[[int], object]]:
    """A progress bar on a terminal, where tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda count: None
        return
    with tqdm(
        initial=start, total=total, desc=name.strip("."), unit="B", unit_scale=True, leave=False, disable=None
    ) as bar:
        yield bar.update
