"""Delight = advantage × surprisal: what a forward pass already says about a sample's backward pass.

from kondo import KondoGate, KondoGateConfig
"""

from kondo.gate import KondoGate, KondoGateConfig, KondoGateOutput
from kondo.objectives import dg_loss, pg_loss
from kondo.signals import delight, expected_confidence_baseline
from kondo.trainer import KondoTrainer

__version__ = "0.1.0"

__all__ = [
    "KondoGate",
    "KondoGateConfig",
    "KondoGateOutput",
    "KondoTrainer",
    "__version__",
    "delight",
    "dg_loss",
    "expected_confidence_baseline",
    "pg_loss",
]
