"""What makes a figure live on the report's page: which of its shapes belong to which method, and the values they show.

An artist is tagged where it is drawn (`tag`), named where it is saved (`describe`, into the SVG's own description), and
put into the page where it is shown (`inlined`). The page's script does the rest; without it the figure is a picture.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

CURVE, BAND, PAPER = "curve", "band", "paper"
MARK = "kondo"
DESCRIPTION = re.compile(r"<dc:description>(.*?)</dc:description>", re.S)


def tag(artist: Artist, kind: str, label: str, seeds: int | None = None) -> None:
    """Say what an artist shows: of which method or setting, a curve, its band or published points; n."""
    artist.set_gid(json.dumps([MARK, kind, label, seeds]))


def _tagged(artist: Artist) -> tuple[str, str, int | None] | None:
    """What was said of an artist; of a line that nobody tagged, its entry in the legend."""
    from matplotlib.lines import Line2D

    gid = artist.get_gid()
    if gid is not None and gid.startswith(f'["{MARK}"'):
        _, kind, label, seeds = json.loads(gid)
        return kind, label, seeds
    named = str(artist.get_label())
    if isinstance(artist, Line2D) and not named.startswith("_") and len(artist.get_xydata()) > 1:  # type: ignore[arg-type]
        return CURVE, named, None
    return None


def describe(figure: Figure) -> str:
    """Name the tagged artists of a figure that is laid out; JSON of what each is, its points in the SVG's coordinates
    and in those of its axes."""
    height, scale = figure.bbox.height, 72 / figure.dpi
    series: list[dict[str, Any]] = []
    for axes in figure.axes:
        for artist in [*axes.lines, *axes.collections]:
            about = _tagged(artist)
            if about is None:
                continue
            kind, label, seeds = about
            name = f"{MARK}{len(series)}"
            artist.set_gid(name)
            entry: dict[str, Any] = {"id": name, "kind": kind, "label": label}
            if kind != BAND:
                data = [[float(x), float(y)] for x, y in artist.get_xydata()]  # type: ignore[attr-defined]
                at = axes.transData.transform(data).tolist() if data else []
                entry |= {"n": seeds, "x": axes.get_xlabel(), "y": axes.get_ylabel()}
                entry["points"] = [
                    [round(u * scale, 1), round((height - v) * scale, 1), float(f"{x:.5g}"), float(f"{y:.5g}")]
                    for (u, v), (x, y) in zip(at, data, strict=True)
                    if abs(u) < 1e6 and abs(v) < 1e6
                ]
            series.append(entry)
    return json.dumps(series, separators=(",", ":"))


def inlined(svg: str, name: str, label: str) -> str:
    """A saved SVG as a part of a page: its ids are its own, and what was described of it is in `data-series`."""
    found = DESCRIPTION.search(svg)
    series = found[1] if found else "[]"  # escaped as it stands in the SVG
    body = DESCRIPTION.sub("", svg[svg.index("<svg") :])
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}--\1"', body)
    body = re.sub(r'(href="#|url\(#)', rf"\1{name}--", body)
    series = series.replace('"', "&quot;")
    return body.replace("<svg", f'<svg role="img" aria-label="{label}" data-name="{name}" data-series="{series}"', 1)
