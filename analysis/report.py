"""Judge the claims from logs alone: report/claims.json, and a table on the terminal.

python -m analysis.report --scale laptop
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from analysis.claims import CLAIMS
from analysis.draw import SCALES
from analysis.load import load_figure


def judge(runs: Path, scale: str) -> list[dict[str, object]]:
    """Every claim, on the runs that its figure planned at this scale."""
    records = []
    for claim in CLAIMS.values():
        records.append(claim.judge(load_figure(runs, scale, claim.figure)) | {"scale": scale})
    return records


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="analysis.report", description="Judge the papers' claims from logs alone.")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of run folders")
    parser.add_argument("--scale", default="laptop", choices=SCALES, help="whose plan to judge")
    parser.add_argument("--out", type=Path, default=Path("report"), help="where the report goes")
    asked = parser.parse_args(arguments)
    records = judge(asked.runs, asked.scale)
    asked.out.mkdir(parents=True, exist_ok=True)
    path = asked.out / "claims.json"
    path.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n")
    for record in records:
        print(f"{record['id']:<12} {record['verdict']:<16} {record['claim']}\n{'':<30}{record['detail']}")
    print(f"report: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
