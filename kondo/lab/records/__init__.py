"""Records: run folders, logs, statuses and plans. Nothing else knows a file's name; neither torch nor pandas needed.

runs/<task>/<cell>-s<first>-<last>/
    config.yaml     the cell and the seeds; and, no part of the identity, the error's column and what was asked for
    metrics.jsonl   append-only, one object per (evaluation, seed): the source of truth
    status.json     running / done / diverged / failed; written whole or not at all; at the end with digests of both
    checkpoint.pt   only while there is something left to do
runs/plans/<scale>/<figure>.json
                    the cells that a figure shows

A results folder holds the same, compressed, with a manifest: archive.py. Whatever reads runs reads either. Beside
them are the finished runs of experiments that are not whole yet: unfinished.py.
"""

from kondo.lab.records.archive import MANIFEST, is_results, opened, read_manifest
from kondo.lab.records.files import (
    CHECKPOINT,
    CONFIG,
    LOCK,
    LOG,
    STATUS,
    Damaged,
    Rows,
    digest,
    is_number,
    key_of,
    read_json,
    replacing,
    say_once,
    write_atomically,
)
from kondo.lab.records.folders import (
    RunBusy,
    begun,
    cell_of,
    claim,
    completed,
    config_text,
    has_checkpoint,
    in_training,
    locked,
    make_folder,
    resumed_from,
    run_folders,
    run_path,
)
from kondo.lab.records.plans import Plan, composed_path, plan_path, planned, read_plan, read_plans, write_plan
from kondo.lab.records.publication import Experiment, Refused, check_whole, publish, read_experiment
from kondo.lab.records.runs import BESIDE, Run, checked_run, content_of, read_log, read_run, read_runs
from kondo.lab.records.status import (
    FINISHED,
    UNFINISHED,
    give_up,
    parse_status,
    read_status,
    spent,
    status_age,
    write_status,
)
from kondo.lab.records.unfinished import keep, restore

__all__ = [
    "BESIDE",
    "CHECKPOINT",
    "CONFIG",
    "FINISHED",
    "LOCK",
    "LOG",
    "MANIFEST",
    "STATUS",
    "UNFINISHED",
    "Damaged",
    "Experiment",
    "Plan",
    "Refused",
    "Rows",
    "Run",
    "RunBusy",
    "begun",
    "cell_of",
    "check_whole",
    "checked_run",
    "claim",
    "completed",
    "composed_path",
    "config_text",
    "content_of",
    "digest",
    "give_up",
    "has_checkpoint",
    "in_training",
    "is_number",
    "is_results",
    "keep",
    "key_of",
    "locked",
    "make_folder",
    "opened",
    "parse_status",
    "plan_path",
    "planned",
    "publish",
    "read_experiment",
    "read_json",
    "read_log",
    "read_manifest",
    "read_plan",
    "read_plans",
    "read_run",
    "read_runs",
    "read_status",
    "replacing",
    "restore",
    "resumed_from",
    "run_folders",
    "run_path",
    "say_once",
    "spent",
    "status_age",
    "write_atomically",
    "write_plan",
    "write_status",
]
