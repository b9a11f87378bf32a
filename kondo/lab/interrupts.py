"""Ctrl-C ends a command once, without a traceback, and leaves those that it started time to save."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible() -> Iterator[None]:
    """The first SIGINT or SIGTERM raises KeyboardInterrupt, and all that follow are ignored; what was ignored before
    stays so."""
    before = {each: signal.getsignal(each) for each in SIGNALS if signal.getsignal(each) != signal.SIG_IGN}

    def first(number: int, frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each in before:
        signal.signal(each, first)
    try:
        yield
    finally:
        for each, handler in before.items():
            if signal.getsignal(each) is first:
                signal.signal(each, handler)


@contextmanager
def held() -> Iterator[None]:
    """SIGINT and SIGTERM wait. Processes that are started meanwhile never feel a SIGINT: only who started them does."""
    resource_tracker.ensure_running()  # to start it later would let SIGINT through
    came: list[int] = []
    before = {each: signal.getsignal(each) for each in SIGNALS if signal.getsignal(each) != signal.SIG_IGN}
    for each in before:
        signal.signal(each, lambda number, frame: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def quietly(main: Callable[[], int]) -> int:
    """Run a command, which ends with a word where it is interrupted."""
    try:
        with interruptible():
            return main()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
