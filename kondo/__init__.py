"""Delight = advantage × surprisal: what a forward pass already says about a sample's backward pass.

from kondo import KondoGate, KondoGateConfig

Names are imported when they are first used, so that `kondo.lab.records` can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kondo.gate import KondoGate, KondoGateConfig, KondoGateOutput
    from kondo.monitoring import diagnostics
    from kondo.objectives import dg_loss, pg_loss
    from kondo.signals import delight, expected_confidence_baseline
    from kondo.trainer import KondoTrainer

__version__ = "0.2.0"

__all__ = [
    "KondoGate",
    "KondoGateConfig",
    "KondoGateOutput",
    "KondoTrainer",
    "__version__",
    "delight",
    "dg_loss",
    "diagnostics",
    "expected_confidence_baseline",
    "pg_loss",
]

_HOMES = {
    "KondoGate": "kondo.gate",
    "KondoGateConfig": "kondo.gate",
    "KondoGateOutput": "kondo.gate",
    "KondoTrainer": "kondo.trainer",
    "delight": "kondo.signals",
    "dg_loss": "kondo.objectives",
    "diagnostics": "kondo.monitoring",
    "expected_confidence_baseline": "kondo.signals",
    "pg_loss": "kondo.objectives",
}

if not TYPE_CHECKING:  # type checkers would take any name for one of these

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
