"""Finished runs of experiments that are not whole yet, kept beside the published ones so that none is trained twice.

results/unfinished/<experiment>.tar.xz    laid out as a published archive; no figure, claim or page reads it
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from kondo.lab.records.archive import FILES, PLANS, SUFFIX, archived_runs, is_results, packed, plan_name, unpacked
from kondo.lab.records.files import STATUS, Damaged, read_bytes, replacing
from kondo.lab.records.folders import RunBusy, locked, make_folder
from kondo.lab.records.plans import plan_text
from kondo.lab.records.publication import Experiment, Record, Refused, read_record, unfinished_path
from kondo.lab.records.runs import checked_run
from kondo.lab.records.status import parse_status


def keep(results: Path, name: str, experiment: Experiment) -> Path:
    """Write the finished runs of an experiment to its archive of unfinished ones; what only that has stays in it."""
    path = unfinished_path(results, name)
    files = {plan_name(experiment.plan.scale, name): plan_text(experiment.plan).encode()}
    kept = dict(_kept(path)) if path.exists() else {}
    for run, record in (kept | dict(experiment.records)).items():
        if record.run.cell in experiment.plan.cells:
            files |= {f"{run}/{file}": content for file, content in record.files.items()}
    if len(files) == 1:
        raise Refused(f"{name}: none of its runs is finished")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(packed(files))
    return path


def restore(results: Path, runs: Path, only: Collection[str] = ()) -> list[Path]:
    """Write published and unfinished experiments' runs (of all, or of those named) to a runs folder, where the next
    reproduction finds them complete. Returns the new folders; what is there already is left as it is."""
    new = []
    for run, record in _records(results, set(only)):
        folder = runs / run
        make_folder(folder)
        try:
            with locked(folder):
                if (folder / STATUS).exists():
                    continue
                for name in FILES:  # the status last: with it a run counts
                    with replacing(folder / name) as file:
                        file.write(record.files[name])
        except RunBusy:
            continue
        new.append(folder)
    return new


def _records(results: Path, only: Collection[str]) -> Iterator[tuple[str, Record]]:
    """Every run of the experiments, published or unfinished."""
    published = archived_runs(results) if is_results(results) else {}
    for run, path in published.items():
        if not only or path.parents[1].name.removesuffix(SUFFIX) in only:
            yield run, read_record(path)
    for path in sorted(unfinished_path(results, "*").parent.glob(f"*{SUFFIX}")):
        if not only or path.name.removesuffix(SUFFIX) in only:
            yield from _kept(path)


def _kept(path: Path) -> Iterator[tuple[str, Record]]:
    """Every run in an archive of unfinished ones; Damaged, with its path, where it cannot be read."""
    try:
        files = unpacked(read_bytes(path) or b"")
        for run in sorted({name.rpartition("/")[0] for name in files if not name.startswith(f"{PLANS}/")}):
            own = {name: files[f"{run}/{name}"] for name in FILES if f"{run}/{name}" in files}
            status = parse_status(own.get(STATUS, b""))
            logged = {name: content for name, content in own.items() if name != STATUS}
            yield run, Record(checked_run(Path(run).name, logged, status), own)
    except Damaged as problem:
        raise Damaged(f"{path}: {problem}") from None
