"""What benches measure."""

import resource
import sys
from types import SimpleNamespace

import pytest

from experiments.timing import peak_memory


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_the_peak_of_memory_is_in_bytes_on_every_system(monkeypatch, platform, unit):
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=3_000))
    monkeypatch.setattr(sys, "platform", platform)
    assert peak_memory() == 3_000 * unit
