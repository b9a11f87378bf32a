"""Optional CPU kernels, each a faster stand-in for plain torch; see README.md."""

from __future__ import annotations

import functools
import os

import torch
from torch import Tensor

SWITCH = "KONDO_KERNELS"


def enabled(x: Tensor) -> bool:
    """Whether kernels may stand in for plain torch on a tensor like this: 32-bit floats on a CPU, with numba installed,
    and not switched off by the environment variable KONDO_KERNELS=off."""
    return switch() != "off" and x.device.type == "cpu" and x.dtype == torch.float32 and installed()


def switch() -> str:
    """on; off; or shared: on, and in a graph answers that begin alike share what they have in common."""
    value = os.environ.get(SWITCH, "on")
    if value not in ("on", "off", "shared"):
        raise ValueError(f"{SWITCH}={value!r}: allowed: on, off, shared")
    return value


def version() -> str | None:
    """Of numba; None where kernels are not used."""
    if switch() == "off" or not installed():
        return None
    import numba

    return str(numba.__version__)


@functools.cache
def installed() -> bool:
    """Whether numba is here and works."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True
