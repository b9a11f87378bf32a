"""Methods, tasks, frictions and more of one's own: files that are imported before a config is composed."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
import sys
from pathlib import Path

from hydra.core.config_store import ConfigStore

from experiments.jobs import CONF
from kondo.lab.frictions import FRICTIONS
from kondo.lab.studies import Study
from kondo.lab.tasks import TASKS
from kondo.objectives import METHODS, settings
from kondo.schema import ConfigError

BUDGET = {
    "smoke": {"steps": 100, "seeds": 2},
    "laptop": {"steps": 1000, "seeds": 5},
    "paper": {"steps": 10_000, "seeds": 30},
}
"""How long and how often, by scale, for a task without a config file; a study is one step."""


def extensions() -> list[Path]:
    """The files in experiments/extensions and in the folders of $KONDO_EXTENSIONS."""
    extra = [Path(folder) for folder in os.environ.get("KONDO_EXTENSIONS", "").split(os.pathsep) if folder]
    folders = [Path(__file__).parent / "extensions", *extra]
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"KONDO_EXTENSIONS: {folder} is no folder")
    return [path for folder in folders for path in sorted(folder.glob("*.py"))]


def load_extensions() -> None:
    """Import every extension, so that what it registers can be named in a config; methods, frictions and
    tasks without a config file get one from their defaults."""
    for path in extensions():
        name = f"kondo_extension_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}_{path.stem}"
        if name not in sys.modules:  # once: what it registers is registered for good
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
    store = ConfigStore.instance()
    for name, objective in METHODS.items():
        if not (CONF / "method" / f"{name}.yaml").exists():
            store.store(group="method", name=name, node={"name": name, **settings(objective)})
    for name, cls in FRICTIONS.items():
        if not (CONF / "friction" / f"{name}.yaml").exists():
            store.store(group="friction", name=name, package="friction", node={name: dataclasses.asdict(cls())})
    for name, cls in TASKS.items():
        if not (CONF / "task" / f"{name}.yaml").exists():
            once = {"steps": 1} if issubclass(cls, Study) else {}
            node = {
                "task": {"name": name, **dataclasses.asdict(cls())},
                "budget": {scale: budget | once for scale, budget in BUDGET.items()},
            }
            store.store(group="task", name=name, package="_global_", node=node)
