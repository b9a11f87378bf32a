"""Adds an experiment: which priority suits the noisy XOR, over rates. Task and priority are those of its neighbours.
It needs the suite, and so the clone, with `make setup`.

    python examples/extending/experiment.py [folder of runs]
    KONDO_EXTENSIONS=examples/extending python -m experiments.run -m experiment=xor_priority scale=smoke

In the project itself the first half is conf/experiment/xor_priority.yaml, and `select` is in its analysis module.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

HERE = Path(__file__).resolve().parent
SWEEP = """
defaults:
  - override /task: noisyxor
  - override /method: dgk

optimizer: { lr: 0.01 }
hydra:
  sweeper:
    params:
      gate.priority: uniform,delight,gradient_size
      gate.rate: 0.03,0.1,0.3
"""
ConfigStore.instance().store("xor_priority", OmegaConf.create(SWEEP), group="experiment", package="_global_")


def select(runs: Path) -> pd.DataFrame:
    """The final error of each priority and rate, mean over seeds, from the logs alone."""
    rows = []
    for folder in sorted(runs.glob("noisyxor/*-s*")):
        config = yaml.safe_load((folder / "config.yaml").read_text())
        log = pd.read_json(folder / "metrics.jsonl", lines=True)
        last = log[log["step"] == config["steps"]][config["error"]].mean()
        rows.append({"priority": config["gate"]["priority"], "rate": config["gate"]["rate"], "error": last})
    return pd.DataFrame(rows).pivot(index="priority", columns="rate", values="error")


def main(runs: Path) -> None:
    words = ["-m", "experiment=xor_priority", "scale=smoke", "wandb.mode=disabled", f"runs={runs}"]
    environment = {**os.environ, "KONDO_EXTENSIONS": str(HERE)}
    subprocess.run([sys.executable, "-m", "experiments.run", *words], env=environment, cwd=HERE.parents[1], check=True)
    print(select(runs).round(3).to_string())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/examples").absolute())
