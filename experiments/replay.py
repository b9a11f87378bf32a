"""An asynchronous run once more, from the schedule in its log: the same batches with parameters of the same age.

    python -m experiments.replay runs/mnist/0123456789ab-s0-0            # in this process
    python -m experiments.replay runs/mnist/0123456789ab-s0-0 --lockstep 2

The replay is a run of its own, repeatable bit for bit; what it learned is compared with what the first run did.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from experiments.extend import load_extensions
from kondo.lab.actor import MISCOMPUTED, logged_schedule, schedule_text
from kondo.lab.config.cell import parse
from kondo.lab.interrupts import quietly
from kondo.lab.ledger import TIMED
from kondo.lab.records import BESIDE, Damaged, Run, read_run
from kondo.lab.remote import COLUMNS
from kondo.lab.training import Block, train
from kondo.schema import ConfigError


def replayed(run: Run, lockstep: int = 0) -> dict[str, Any]:
    """The config of a run's replay: in this process, or in so many actors elsewhere."""
    config = {name: value for name, value in run.config.items() if name not in BESIDE}
    if config["actor"].get("mode") != "async":
        raise ConfigError(f"{run.name}: no asynchronous run: it is repeatable as it is")
    actor = config["actor"]
    fault = {"fault": actor["fault"]} if actor.get("fault") in MISCOMPUTED else {}
    count = actor.get("count", 1)
    if fault and lockstep != count:
        raise ConfigError(
            f"{run.name}: its first actor computes otherwise (actor.fault={actor['fault']}), and so must the first of "
            f"as many: --lockstep {count}"
        )
    mode = {"mode": "lockstep", "count": lockstep, **fault} if lockstep else {}
    schedule = schedule_text(logged_schedule(run.rows))
    return config | {"actor": {"report_probabilities": actor["report_probabilities"], "schedule": schedule, **mode}}


def learned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a log says of learning, without seconds and without how batches came about."""
    return [{name: value for name, value in row.items() if name not in COLUMNS and name not in TIMED} for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(prog="experiments.replay", description="Repeat an asynchronous run.")
    parser.add_argument("folder", type=Path, help="the run's folder")
    parser.add_argument("--lockstep", type=int, default=0, metavar="N", help="in N actor processes")
    parser.add_argument("--runs", type=Path, help="where the replay goes (default: where the run is)")
    parser.add_argument("--data", default="data", help="folder of data sets")
    asked = parser.parse_args()
    load_extensions()
    try:
        run = read_run(asked.folder)
        if run is None:
            raise ConfigError(f"{asked.folder}: no finished run")
        block = Block(parse(replayed(run, asked.lockstep)), tuple(run.config["seeds"]))
    except (ConfigError, Damaged) as error:
        sys.exit(f"error: {error}")
    root = asked.runs or asked.folder.parent.parent
    train(block, root, data=asked.data)
    again = read_run(block.folder(root))
    assert again is not None
    same = learned(again.rows) == learned(list(run.rows))
    print(f"{block.folder(root)}: {'the same log' if same else 'ANOTHER log'} in all that was learned")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(quietly(main))
