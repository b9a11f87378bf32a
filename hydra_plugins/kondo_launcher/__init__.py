"""What Hydra sees of the launchers: it hands over a batch of jobs, and gets their final errors back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class KondoLauncher(Launcher):
    """hydra/launcher=joblib, ray, submitit_local, submitit_slurm: `kind` is which, the rest are its settings."""

    def __init__(self, kind: str, **settings: Any) -> None:
        self.kind, self.settings = kind, settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.loader, self.config = hydra_context.config_loader, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """All cells are checked before any is trained; each is trained once."""
        from experiments.launchers import launcher_of
        from experiments.run import train_batch

        return train_batch(self.config, self.loader, launcher_of(self.kind, self.settings), job_overrides)
