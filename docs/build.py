"""What `make docs` does beside mkdocs: the home page is the README, tables come from the code, and a link to a file of
the repository leads to that file.

On a page, `<!-- generated: name -->` is replaced by what the function of that name here returns.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!\\)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
MARK = re.compile(r"<!-- generated: (\w+) -->")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".md": "markdown", ".css": "css"}

# Generated tables


def _tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def _about(node: ast.Module | ast.ClassDef | ast.FunctionDef, whole: bool = False) -> str:
    """The docstring, on one line; its first paragraph unless the whole is asked for."""
    text = ast.get_docstring(node) or ""
    return " ".join((text if whole else text.partition("\n\n")[0]).split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _keys(node: ast.AST) -> Iterator[str]:
    """The names that a function gives to columns: keys of its dictionaries and of what it puts into `columns`."""
    for child in ast.walk(node):
        targets = child.targets if isinstance(child, ast.Assign) else []
        stored = [each.slice for each in targets if isinstance(each, ast.Subscript)]
        for key in [*(child.keys if isinstance(child, ast.Dict) else []), *stored]:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value
            elif isinstance(key, ast.JoinedStr):
                yield "".join(each.value if isinstance(each, ast.Constant) else "…" for each in key.values)


def _functions(path: str, decorator: str) -> list[ast.FunctionDef]:
    """The functions of a file that are registered by a decorator."""
    found = [node for node in _tree(path).body if isinstance(node, ast.FunctionDef)]
    return [node for node in found if any(decorator in ast.unparse(each) for each in node.decorator_list)]


def _method(path: str, name: str) -> ast.FunctionDef:
    """The method of that name of the only class of a file that has it."""
    (found,) = (
        node
        for cls in _tree(path).body
        if isinstance(cls, ast.ClassDef)
        for node in cls.body
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    return found


EVERY = {
    "step": "updates of the learner so far; the row is an evaluation after them",
    "seed": "which seed; a row has one",
    "diverged": "the step at which the seed met a non-finite number; only on rows of a seed that did",
    "train_error": "1 − mean reward of the samples drawn in training since the last evaluation",
    "friction_error": "1 − mean reward through the frictions; only with frictions",
    "price": "λ of the last step; only with a gate",
}
"""Columns of the engine itself (`kondo/lab/engine.py`)."""
TIMES = {
    "rollout": "sampling",
    "screen": "telling delight and deciding",
    "backward": "forward with a graph, and backward",
    "optimizer": "the update",
}


def columns() -> str:
    """A table of every column of a log, with where it comes from."""
    ledger = {
        node.targets[0].id: node.value
        for node in _tree("kondo/lab/ledger.py").body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    counts, phases = ast.literal_eval(ledger["COUNTS"]), ast.literal_eval(ledger["PHASES"])
    lines = ["| column | meaning | from |", "|---|---|---|"]

    def add(names: list[str], meaning: str, source: str) -> None:
        shown = ", ".join(f"`{name}`" for name in dict.fromkeys(names))
        lines.append(f"| {shown} | {_cell(meaning)} | `{source}` |")

    for name, meaning in EVERY.items():
        add([name], meaning, "kondo/lab/engine.py")
    for task in ("bandit", "mnist", "reversal"):
        path = f"kondo/lab/tasks/{task}.py"
        node = _method(path, "evaluate")
        names = [each for each in [*_keys(node)] if each.endswith("error") or each == "entropy"]
        add(names, f"{task}: {_about(node)}", path)
    for folder, words in (("language", "`task=language`"), ("remote", "`actor.mode=async`")):
        path = f"kondo/lab/{folder}/__init__.py"
        (node,) = (each for each in _tree(path).body if isinstance(each, ast.Assign))
        for name, meaning in ast.literal_eval(node.value).items():
            add([name], f"{words}: {meaning}", path)
    for name, meaning in counts.items():
        add([name], f"counted: {meaning}", "kondo/lab/ledger.py")
    for phase in phases:
        add([f"seconds_{phase}"], f"timed: {TIMES[phase]}; each seed's share of its block", "kondo/lab/ledger.py")
    add(["padding"], "samples of weight zero that level the seeds of a block", "kondo/lab/ledger.py")
    for node in _functions("kondo/lab/probes.py", "probe"):
        names = [each for each in _keys(node) if "_" in each or each == "recall"]
        if node.name == "alignment":
            names = [each for each in names if each.startswith("cos")]
        if names:
            add(names, f"`probe.name={node.name}`: {_about(node)}", "kondo/lab/probes.py")
    path = "kondo/lab/studies/__init__.py"
    (node,) = (each.value for each in _tree(path).body if isinstance(each, ast.Assign) and _named(each, "COLUMNS"))
    for name, meaning in ast.literal_eval(node).items():
        add([name, f"{name}_simulated"], f"a study: {meaning}; and by simulation, where it is", path)
    return "\n".join(lines)


def _named(node: ast.Assign, name: str) -> bool:
    return isinstance(node.targets[0], ast.Name) and node.targets[0].id == name


def rules() -> str:
    """How a claim is judged, with the numbers that the code has."""
    sys.path.insert(0, str(ROOT))
    from analysis.rules import tables

    return tables()


PUBLIC = {
    "The gate": [
        "kondo/gate.py",
        "kondo/settings.py",
        "kondo/pricing.py",
        "kondo/scaling.py",
        "kondo/priorities.py",
        "kondo/signals.py",
        "kondo/monitoring.py",
    ],
    "Objectives": ["kondo/objectives.py"],
    "Trainers": ["kondo/trainer.py", "kondo/filter.py", "kondo/parallel.py", "kondo/packing.py", "kondo/batch.py"],
    "Integrations": [f"kondo/integrations/{name}.py" for name in ("transformers", "trl", "trl_config", "trl_async")],
    "The engine": ["kondo/lab/__init__.py", "kondo/lab/engine.py", "kondo/lab/streams.py"],
}


def step_costs() -> str:
    """What a step costs, as `make bench` measured it: a table for each model of docs/bench.json."""
    tables = []
    for result in json.loads((DOCS / "bench.json").read_text()):
        if "steps" in result:
            units = list(next(iter(result["steps"].values())))
            lines = [f"| {result['about']} | {' | '.join(units)} |", f"|---|{'---:|' * len(units)}"]
            lines += [f"| {name} | {' | '.join(f'{cost[unit]:,}' for unit in units)} |"
                      for name, cost in result["steps"].items()]  # fmt: skip
            tables.append("\n".join(lines))
    return "\n\n".join(tables)


def language_claims() -> str:
    """What the published runs say of the claims about a pretrained language model."""
    rows = (DOCS / "results" / "README.md").read_text().splitlines()
    own = [row.replace("](", "](results/") for row in rows if row.startswith("| [L")]
    return "\n".join(["| claim | verdict | measured | n, steps |", "|---|---|---|---|", *own])


def api() -> str:
    """Every public function and class of the library, from its source: signature and docstring."""
    lines = []
    for title, paths in PUBLIC.items():
        lines += [f"## {title}", ""]
        for path in paths:
            tree, module = _tree(path), path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
            lines += [f"### {module}", "", _about(tree), ""]
            for node in tree.body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                    lines += _described(node, f"{module}.{node.name}")
    return "\n".join(lines)


def _described(node: ast.FunctionDef | ast.ClassDef, name: str) -> list[str]:
    text = ast.get_docstring(node) or ""
    if isinstance(node, ast.FunctionDef):
        if any(isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list):
            return []
        return [f"#### {node.name}", "", "```python", _signature(node), "```", "", *_quoted(text), ""]
    lines = [f"#### {node.name}", "", *_quoted(text), ""]
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    fields = [
        line for each, after in zip(node.body, [*node.body[1:], None], strict=True) for line in _field(each, after)
    ]
    if fields:
        lines += ["```python", *fields, "```", ""]
    for method in methods:
        if method.name == "__init__" or (not method.name.startswith("_") and ast.get_docstring(method)):
            shown = _signature(method, node.name if method.name == "__init__" else None)
            lines += ["```python", shown, "```", "", *_quoted(ast.get_docstring(method) or ""), ""]
    return lines


def _field(node: ast.stmt, after: ast.stmt | None) -> list[str]:
    """A field of a class, after the text that follows it."""
    if not isinstance(node, ast.AnnAssign):
        return []
    told = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
    return [*(f"# {line.strip()}" for line in str(told).splitlines()), ast.unparse(node)]


def _signature(node: ast.FunctionDef, name: str | None = None) -> str:
    returned = f" -> {ast.unparse(node.returns)}" if node.returns and name is None else ""
    line = f"{name or node.name}({ast.unparse(node.args)}){returned}".replace("(self, ", "(").replace("(self)", "()")
    if len(line) <= 100:
        return line
    head, _, rest = line.partition("(")
    return f"{head}(\n    {_broken(rest)}"


def _broken(rest: str) -> str:
    """Arguments, one on a line: broken at the commas that are not inside brackets."""
    out, depth = "", 0
    for letter in rest:
        depth += letter in "([{"
        if letter in ")]}":
            depth -= 1
            if depth < 0:
                out += "\n"
        out += letter
        if letter == "," and depth == 0:
            out += "\n   "
    return out


def _quoted(text: str) -> list[str]:
    """A docstring as text; what it indents stays code."""
    return [line.replace("::", ":") if line.endswith("::") else line for line in text.splitlines()]


GENERATED: dict[str, Callable[[], str]] = {
    each.__name__: each for each in (columns, rules, api, step_costs, language_claims)
}


def filled(text: str) -> str:
    """A page with what is generated in it."""
    return MARK.sub(lambda found: GENERATED[found[1]](), text)


# Links


def targets(text: str) -> list[str]:
    """What a page links to, addresses of the network and places on the page left out."""
    return [found[1] for found in LINK.finditer(_prose(text))]


def _prose(text: str) -> str:
    """Without blocks of code, of the same length."""
    return re.sub(r"```.*?```", lambda found: " " * len(found[0]), text, flags=re.S)


def relinked(text: str, page: Path) -> tuple[str, set[Path]]:
    """A page with its links to files outside docs/ turned to pages of the site, and those files.

    page: where the text is read from; the README is shown as docs/index.md.
    """
    wanted: set[Path] = set()
    home = DOCS if page.parent == ROOT else page.parent
    prose = _prose(text)
    out, last = "", 0
    for found in LINK.finditer(prose):
        target = (page.parent / found[1]).resolve()
        try:
            inside = target.relative_to(DOCS)
        except ValueError:
            inside = None
        if inside is not None:
            place = DOCS / inside
        elif target == ROOT / "CHANGELOG.md":
            place = DOCS / "changes.md"
        elif target.is_file():
            wanted.add(target)
            place = _source(target)
        else:
            continue  # mkdocs will say that it is not there
        up = [".."] * len(home.relative_to(DOCS).parts)
        shown = "/".join([*up, *place.relative_to(DOCS).parts])
        out += text[last : found.start(1)] + shown
        last = found.end(1)
    return out + text[last:], wanted


def _source(path: Path) -> Path:
    return DOCS / "source" / f"{path.relative_to(ROOT)}.md"


def source_page(path: Path) -> str:
    """A file of the repository as a page."""
    name = str(path.relative_to(ROOT))
    fence = "`" * 6
    head = f"---\nsearch:\n  exclude: true\n---\n# {name}\n\n"
    return f"{head}{fence}{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n{fence}\n"


# What mkdocs calls


def on_config(config: Any) -> Any:
    """The pages of published results, in the order of their names."""
    for entry in config.nav:
        if "Results" in entry:
            pages = sorted(path.stem for path in (DOCS / "results").glob("*.md") if path.stem != "README")
            entry["Results"] += [{name: f"results/{name}.md"} for name in pages]
    return config


def on_files(files: Any, config: Any) -> Any:
    """The home page, the changes, and every file of the repository that a page links to."""
    from mkdocs.structure.files import File, InclusionLevel

    wanted: set[Path] = set()
    made = {"index.md": ROOT / "README.md", "changes.md": ROOT / "CHANGELOG.md"}
    for name, path in made.items():
        text, more = relinked(path.read_text(), path)
        wanted |= more
        files.append(File.generated(config, name, content=text))
    for file in list(files.documentation_pages()):
        if file.abs_src_path:
            wanted |= relinked(Path(file.abs_src_path).read_text(), Path(file.abs_src_path))[1]
    for path in sorted(wanted):
        name = str(_source(path).relative_to(DOCS))
        files.append(File.generated(config, name, content=source_page(path), inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    path = page.file.abs_src_path
    return filled(relinked(markdown, Path(path))[0] if path else markdown)
