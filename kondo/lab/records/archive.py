"""Published records: a results folder has one compressed archive per experiment, laid out inside as a runs folder is.

results/manifest.json           what was published: digests, seeds, commits, machines, seconds
results/<experiment>.tar.xz
    plans/<scale>/<experiment>.json
    <task>/<cell>-s<first>-<last>/{config.yaml, metrics.jsonl, status.json}

A file in an archive has a path as well, results/joy_3.tar.xz/mnist/…/status.json, and `read_file` reads it. Nothing is
unpacked to disk, and an archive counts whole or not at all.
"""

from __future__ import annotations

import functools
import io
import lzma
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kondo.lab.records.files import CONFIG, KEY, LOG, STATUS, Damaged, digest, parse_json, read_bytes

MANIFEST = "manifest.json"
SUFFIX = ".tar.xz"
PLANS = "plans"
FILES = (CONFIG, LOG, STATUS)
"""What is published of a run."""
WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,80}"
RUN = re.compile(rf"(?!{PLANS}/){WORD}/({KEY})-s[0-9]{{1,9}}-[0-9]{{1,9}}")
"""<task>/<cell>-s<first seed>-<last seed>"""
LARGEST_ARCHIVE, LARGEST_FILE, LARGEST_UNPACKED = 64 << 20, 64 << 20, 1 << 30
MEMORY = 256 << 20
"""Bytes that unpacking may take beside what is unpacked."""


def plan_name(scale: str, experiment: str) -> str:
    """Where a plan is, in a runs folder or in an archive."""
    return f"{PLANS}/{scale}/{experiment}.json"


# The manifest


def is_results(root: Path) -> bool:
    """Whether a folder holds published records, rather than run folders."""
    return (root / MANIFEST).is_file()


def read_manifest(results: Path) -> Mapping[str, Any]:
    """{experiment: what was published of it}; not to be changed. Damaged where it cannot be read."""
    path = results / MANIFEST
    found = _manifest(path, *_stamp(path))
    if found is None:
        raise Damaged(f"{path}: no manifest that can be read")
    return found


@functools.lru_cache(maxsize=16)
def _manifest(path: Path, changed: int, size: int) -> Mapping[str, Any] | None:
    try:
        parsed = parse_json(read_bytes(path) or b"") if size <= LARGEST_FILE else None
    except (ValueError, RecursionError):
        return None
    found = parsed.get("experiments") if isinstance(parsed, dict) else None
    if not isinstance(found, dict) or not all(re.fullmatch(WORD, name) for name in found):
        return None
    archives = {f"{name}{SUFFIX}" for name in found}
    return found if all(_is_entry(entry, archives) for entry in found.values()) else None


def _is_entry(entry: Any, archives: set[str]) -> bool:
    """Whether what is read of an entry is what it should be."""
    if not (isinstance(entry, dict) and isinstance(entry.get("cells"), dict)):
        return False
    texts = all(isinstance(entry.get(name), str) for name in ("sha256", "scale"))
    return (
        texts
        and re.fullmatch(WORD, entry["scale"]) is not None
        and all(_is_cell(key, cell, archives) for key, cell in entry["cells"].items())
    )


def _is_cell(key: str, cell: Any, archives: set[str]) -> bool:
    runs = cell.get("runs") if isinstance(cell, dict) else None
    if not isinstance(runs, dict):
        return False
    named = [(RUN.fullmatch(run), home) for run, home in runs.items()]
    return all(run is not None and run[1] == key and home in archives for run, home in named)


def archived_runs(results: Path, cells: Iterable[str] | None = None) -> dict[str, Path]:
    """{task/run: its path in the archive that holds it} of all cells, or of those given, in the order of a folder."""
    wanted = None if cells is None else set(cells)
    homes = {
        run: results / home / run
        for entry in read_manifest(results).values()
        for key, cell in entry["cells"].items()
        if wanted is None or key in wanted
        for run, home in cell["runs"].items()
    }
    return dict(sorted(homes.items(), key=lambda item: Path(item[0])))


@functools.lru_cache(maxsize=16)
def _contents(results: Path, changed: int, size: int) -> Mapping[str, frozenset[str]]:
    """{archive: the names of all files that it should hold}"""
    names = {
        f"{experiment}{SUFFIX}": [plan_name(entry["scale"], experiment)]
        for experiment, entry in read_manifest(results).items()
    }
    for run, path in archived_runs(results).items():
        names[path.parents[1].name] += [f"{run}/{file}" for file in FILES]
    return {archive: frozenset(held) for archive, held in names.items()}


# Reading an archive


def archive_of(path: Path) -> Path | None:
    """The archive that a path leads into."""
    return next((each for each in path.parents if each.name.endswith(SUFFIX) and is_results(each.parent)), None)


def read_file(path: Path) -> bytes | None:
    """What is in a file, of a folder or of an archive; None where there is none that can be read."""
    archive = archive_of(path)
    if archive is None:
        return read_bytes(path)
    try:
        return opened(archive).get(path.relative_to(archive).as_posix())
    except Damaged:
        return None


def opened(archive: Path) -> Mapping[str, bytes]:
    """{name: content} of all that an archive holds; Damaged, with its path, where that is not what was published."""
    entry = read_manifest(archive.parent).get(archive.name.removesuffix(SUFFIX))
    if entry is None:
        raise Damaged(f"{archive}: not in {MANIFEST}")
    if archive.is_symlink():
        raise Damaged(f"{archive}: a link, not a file")
    expected = _contents(archive.parent, *_stamp(archive.parent / MANIFEST))
    found = _opened(archive, *_stamp(archive), entry["sha256"], expected[archive.name])
    if isinstance(found, str):
        raise Damaged(f"{archive}: {found}")
    return found


@functools.lru_cache(maxsize=64)
def _opened(archive: Path, changed: int, size: int, sha256: str, expected: frozenset[str]) -> Mapping[str, bytes] | str:
    """What an archive holds, or why it is refused."""
    try:
        if size > LARGEST_ARCHIVE:
            raise Damaged(f"too large, {size:,} bytes")
        packed = read_bytes(archive)
        if packed is None:
            raise Damaged("cannot be read")
        if digest(packed) != sha256:
            raise Damaged(f"was changed after it was published: its sha256 is not the one in {MANIFEST}")
        files = unpacked(packed)
    except Damaged as problem:
        return str(problem)
    if foreign := sorted(set(files) - expected):
        return f"holds {foreign[0]!r}, which {MANIFEST} does not list"
    if missing := sorted(expected - set(files)):
        return f"{missing[0]!r} is missing"
    return files


def _stamp(path: Path) -> tuple[int, int]:
    """When a file was changed last, and its size; zeros where there is none."""
    try:
        state = path.stat()
    except OSError:
        return 0, 0
    return state.st_mtime_ns, state.st_size


def unpacked(packed: bytes) -> dict[str, bytes]:
    """{name: content} of an archive that holds plain files with the names of run folders and plans, nothing else."""
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(_decompressed(packed)), mode="r:") as tar:
            for member in tar:
                name = member.name
                if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
                    raise Damaged(f"{name[:200]!r} is no plain file")
                if not _is_name(name) or name in files:
                    raise Damaged(f"{name[:200]!r} is no name of a published file, or there twice")
                if member.size > LARGEST_FILE:
                    raise Damaged(f"{name!r} is too large, {member.size:,} bytes")
                content = tar.extractfile(member)
                files[name] = b"" if content is None else content.read()
    except Damaged:
        raise
    except Exception as error:  # tarfile raises many kinds at bytes that are no archive
        raise Damaged(f"no archive that can be read ({type(error).__name__})") from None
    return files


def _is_name(name: str) -> bool:
    run, _, file = name.rpartition("/")
    return re.fullmatch(rf"{PLANS}/{WORD}/{WORD}\.json", name) is not None or (
        file in FILES and RUN.fullmatch(run) is not None
    )


def _decompressed(packed: bytes) -> bytes:
    """What xz holds, whole."""
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
    try:
        plain = decompressor.decompress(packed, LARGEST_UNPACKED + 1)
    except lzma.LZMAError:
        raise Damaged("not xz, or damaged") from None
    if len(plain) > LARGEST_UNPACKED:
        raise Damaged("too large when unpacked")
    if not decompressor.eof or decompressor.unused_data:
        raise Damaged("truncated" if not decompressor.eof else "something follows its end")
    return plain


# Writing one


def packed(files: Mapping[str, bytes]) -> bytes:
    """An archive of these files: the same files give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            tar.addfile(member, io.BytesIO(files[name]))  # mtime, uid and gid are 0, and nobody's name is in it
    return lzma.compress(buffer.getvalue(), preset=9)
