"""Where runs are trained: here, in processes of this machine, on a Ray cluster or through SLURM.

`hydra/launcher=…` chooses, with the settings in conf/hydra/launcher. A launcher only hands calls to workers: which runs
there are, who trains what and how far it is stands in the run folders, which the workers share.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import joblib

from experiments.compose import launcher_settings
from kondo.lab.interrupts import held
from kondo.schema import ConfigError, build, knob, nearest

IDLE_SECONDS = 60.0
"""After so long without work a worker ends, also one whose parent was killed."""
GRACE_SECONDS = 10.0
"""How long an interrupted worker may take to save where it is."""


class Handle(Protocol):
    """A call in some worker's hands; result() raises if the worker was lost."""

    def done(self) -> bool: ...
    def result(self) -> str: ...


Submit = Callable[..., Handle]


class Launcher(Protocol):
    def open(self, folder: Path) -> AbstractContextManager[tuple[Submit, int]]:
        """Workers, as a function that hands one a call, and how many calls to hand out at a time."""


def cores() -> int:
    return joblib.cpu_count()


_orders: dict[str, Any] = {"stop": False, "parent": None}


def stoppable(parent: int) -> None:
    """In a worker: an interruption waits until the run can be saved, and so does the loss of the parent, be it lost
    before the worker got here."""
    _orders["parent"] = parent
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: _orders.update(stop=True))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # held while the worker was started


def told_to_stop() -> bool:
    return _orders["stop"] or _orders["parent"] not in (None, os.getppid())


@dataclass(frozen=True)
class Basic:
    @contextmanager
    def open(self, folder: Path) -> Iterator[tuple[Submit, int]]:
        def submit(function: Callable[..., str], *arguments: Any) -> Future[str]:
            future: Future[str] = Future()
            future.set_result(function(*arguments))
            return future

        yield submit, 1


@dataclass(frozen=True)
class Joblib:
    n_jobs: int | None = knob(None, low=1)

    @contextmanager
    def open(self, folder: Path) -> Iterator[tuple[Submit, int]]:
        """A pool of one for each worker: joblib's pools end all of their workers when one dies."""
        from joblib.externals.loky import ProcessPoolExecutor

        warnings.filterwarnings("ignore", "A worker stopped", UserWarning)  # it grew: loky begins another
        last: dict[Any, Future[str]] = {}  # by pool

        def submit(function: Callable[..., str], *arguments: Any) -> Future[str]:
            for pool, future in list(last.items()):
                if future.done() and future.exception() is not None:
                    del last[pool]  # its worker died
            free = next((pool for pool, future in last.items() if future.done()), None)
            with held():  # from the start: a pool that is interrupted while it is made leaves its semaphores behind
                pool = free or ProcessPoolExecutor(
                    1,
                    timeout=IDLE_SECONDS,
                    env={"OMP_NUM_THREADS": "1"},
                    initializer=stoppable,
                    initargs=(os.getpid(),),
                )
                last[pool] = pool.submit(function, *arguments)
            return last[pool]

        try:
            yield submit, self.n_jobs or cores()
        except KeyboardInterrupt:
            for pid in [pid for pool in last for pid in pool._processes]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            until = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < until and not all(future.done() for future in last.values()):
                time.sleep(0.05)
            raise
        finally:
            for pool in last:
                pool.shutdown(wait=False, kill_workers=True)


@dataclass(frozen=True)
class Ray:
    address: str | None = None
    n_jobs: int | None = knob(None, low=1)
    gpus: float = knob(0.0, low=0)

    @contextmanager
    def open(self, folder: Path) -> Iterator[tuple[Submit, int]]:
        import ray

        environment = {"env_vars": {"OMP_NUM_THREADS": "1"}}
        own: Any = {} if self.address else {"num_cpus": self.n_jobs or cores(), "include_dashboard": False}
        ray.init(self.address, log_to_driver=False, logging_level=logging.WARNING, runtime_env=environment, **own)
        try:
            size = self.n_jobs or int(ray.cluster_resources().get("CPU", 1))

            def submit(function: Callable[..., str], *arguments: Any) -> Future[str]:
                remote = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=0)(function)
                return remote.remote(*arguments).future()

            yield submit, size
        finally:
            ray.shutdown()


@dataclass(frozen=True)
class SubmititLocal:
    n_jobs: int | None = knob(None, low=1)
    timeout_min: int = knob(240, low=1)
    cluster: ClassVar[str] = "local"

    def parameters(self) -> dict[str, Any]:
        return {"timeout_min": self.timeout_min}

    @contextmanager
    def open(self, folder: Path) -> Iterator[tuple[Submit, int]]:
        import submitit

        executor = submitit.AutoExecutor(folder / ".submitit", cluster=self.cluster)
        executor.update_parameters(name="kondo", **self.parameters())
        with ExitStack() as jobs:

            def submit(function: Callable[..., str], *arguments: Any) -> Handle:
                job = executor.submit(function, *arguments)
                jobs.callback(lambda: None if job.done() else job.cancel())
                return job

            yield submit, self.n_jobs or cores()


@dataclass(frozen=True)
class SubmititSlurm(SubmititLocal):
    n_jobs: int | None = knob(50, low=1)
    mem_gb: float = knob(4.0, above=0)
    gpus: int = knob(0, low=0)
    partition: str | None = None
    account: str | None = None
    cluster: ClassVar[str] = "slurm"

    def parameters(self) -> dict[str, Any]:
        named = {"slurm_partition": self.partition, "slurm_account": self.account, "gpus_per_node": self.gpus}
        return {
            "timeout_min": self.timeout_min,
            "mem_gb": self.mem_gb,
            "cpus_per_task": 1,
            **{name: value for name, value in named.items() if value},
        }


LAUNCHERS: dict[str, type[Any]] = {
    "basic": Basic,
    "joblib": Joblib,
    "ray": Ray,
    "submitit_local": SubmititLocal,
    "submitit_slurm": SubmititSlurm,
}
PACKAGES = {"ray": "ray", "submitit_local": "submitit", "submitit_slurm": "submitit"}
EXTRAS = {"ray": "ray", "submitit": "slurm"}


def launcher(overrides: Sequence[str]) -> Launcher:
    """What `hydra/launcher=…` and `hydra.launcher.…` ask for, or the default."""
    name, settings = launcher_settings(overrides)
    for key in ("_target_", "kind"):
        settings.pop(key, None)
    return launcher_of(name, settings)


def launcher_of(name: str, settings: Mapping[str, Any]) -> Launcher:
    """A launcher by name, with its settings."""
    if name not in LAUNCHERS:
        raise ConfigError(f"hydra/launcher={name}: no such launcher; {nearest(name, LAUNCHERS)}")
    package = PACKAGES.get(name)
    if package and importlib.util.find_spec(package) is None:
        raise ConfigError(f"hydra/launcher={name}: {package} is not installed; pip install 'kondo[{EXTRAS[package]}]'")
    return build(LAUNCHERS[name], settings, "hydra.launcher")
