"""Weights & Biases as a mirror of the log: whatever happens to it, training goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any

from experiments.jobs import Job
from kondo.lab.records import Rows
from kondo.lab.training import Block

AXES = ("step", "forward", "backward")


class Mirror:
    """Logs each evaluation: every metric's mean over the block's seeds, and the error of each seed."""

    def __init__(self, job: Job, block: Block) -> None:
        self.job, self.block = job, block
        self.run: Any = None
        self.started = False

    def __enter__(self) -> Mirror:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.run is not None:
            self._try(lambda: self.run.finish(exit_code=0 if kind is None else 1))

    def log(self, rows: Rows) -> None:
        """The first call starts the mirror: by then the run is known to be ours to train."""
        if not self.started:
            self.started = True
            self._try(self._start)
        if rows and self.run is not None:
            self._try(lambda: self.run.log(summary(rows, self.job.cell.error)))

    def _start(self) -> None:
        settings = self.job.launch.wandb
        if settings.mode == "disabled":
            return
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        plain = self.block.plain()
        folder = self.block.folder(Path(self.job.launch.runs))
        Path(settings.dir).mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            mode=settings.mode,  # type: ignore[arg-type]
            project=settings.project,
            group=settings.group,
            job_type=self.job.choices["method"],
            tags=[self.job.choices["task"], self.job.choices["friction"], self.job.launch.scale],
            id=folder.name,
            name=self.job.name,
            config=plain,
            dir=settings.dir,
            resume="allow" if settings.mode == "online" else None,
            settings=wandb.Settings(console="off", x_disable_stats=True),
        )
        for axis in AXES:
            self.run.define_metric(axis, hidden=True)
        self.run.define_metric("*", step_metric="step")

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            print(f"wandb: {type(error).__name__}: {error}; training goes on without it", file=sys.stderr)
            self.run = None


def summary(rows: Rows, error: str | None) -> dict[str, float]:
    """One evaluation of a block as W&B sees it: means over seeds, and each seed's error."""
    values: dict[str, float] = {"step": rows[0]["step"]}
    for name in rows[0]:
        seen = [row[name] for row in rows if isinstance(row.get(name), (int, float))]
        if seen and name not in ("step", "seed"):
            values[name] = fmean(seen)
    return values | {f"{error}/seed{row['seed']}": row[error] for row in rows if error and row.get(error) is not None}
