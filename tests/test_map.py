"""Who imports whom: the two products, and what only reads files, stay apart."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import kondo

ROOT = Path(__file__).parent.parent
HEAVY = {"hydra", "omegaconf", "wandb", "matplotlib", "pandas"}
MAP = {
    "schema": (set(), HEAVY | {"torch", "numpy"}),
    "library": ({"schema", "library"}, HEAVY),
    "records": ({"schema", "records"}, HEAVY | {"torch", "numpy"}),
    "lab": ({"schema", "library", "records", "lab"}, HEAVY),
    "analysis": ({"records", "analysis", "claims"}, {"torch", "hydra", "omegaconf", "wandb"}),
    "claims": ({"records", "analysis", "claims"}, {"torch", "hydra", "omegaconf", "wandb", "matplotlib"}),
    "experiments": ({"schema", "library", "records", "lab", "analysis", "claims", "experiments"}, {"matplotlib"}),
}
"""{part: (the parts that it may import, the packages that it may not)}"""


RECORDS = ("kondo.lab.records", "kondo.lab.interrupts")
"""What all who handle run folders share."""
NAMES = ("metrics.jsonl", "status.json", "config.yaml", "checkpoint.pt", ".composed.json", "-s*-*")
"""What the files and folders of a run are called."""
DRAWING = {"experiments/reproduce.py"}
"""The modules of `experiments` that draw and report."""


def part(module: str) -> str | None:
    """Which part of the project a module belongs to; None for what is installed."""
    top = module.split(".")[0]
    if module.startswith("kondo.schema"):
        return "schema"
    if module.startswith(RECORDS):
        return "records"
    if top == "kondo":
        return "lab" if module.startswith("kondo.lab") else "library"
    if top == "analysis":
        return "claims" if module.startswith("analysis.experiments") else "analysis"
    return {"experiments": "experiments", "hydra_plugins": "experiments"}.get(top)


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at its head or inside a function; not what is for type checkers alone."""
    tree = ast.parse(path.read_text())
    typing = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.walk(node)
    }
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in typing:
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node not in typing:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {
    path: part(module(path))
    for folder in ("kondo", "analysis", "experiments", "hydra_plugins")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "extensions" not in path.parts
}


@pytest.mark.parametrize("name", MAP)
def test_a_part_imports_only_what_the_map_allows(name):
    allowed, refused = MAP[name]
    chosen = [path for path, belongs in FILES.items() if belongs == name]
    assert chosen
    for path in chosen:
        for each in imports(path):
            own = part(each)
            assert own is None or own in allowed, f"{path.relative_to(ROOT)} imports {each}"
            assert each.split(".")[0] not in refused, f"{path.relative_to(ROOT)} imports {each}"


def test_only_the_records_know_what_the_files_of_a_run_are_called():
    spelled = {(path.relative_to(ROOT).parent, name) for path in FILES for name in NAMES if name in path.read_text()}
    assert spelled == {(Path("kondo/lab/records"), name) for name in NAMES}


def test_experiments_ask_analysis_for_figures_and_the_report_alone():
    asking = {
        str(path.relative_to(ROOT)): {each for each in imports(path) if part(each) == "analysis"}
        for path, belongs in FILES.items()
        if belongs == "experiments"
    }
    assert {path for path, modules in asking.items() if modules} == DRAWING
    assert set.union(*asking.values()) == {"analysis.draw", "analysis.report"}


@pytest.mark.parametrize("name", sorted(set(MAP) - {"lab"}))  # a study registers itself with its own package
def test_no_module_imports_itself_by_a_detour(name):
    files = {module(path): path for path, belongs in FILES.items() if belongs == name}
    graph = {own: {each for each in _modules(path) if each in files} - {own} for own, path in files.items()}
    graphlib.TopologicalSorter(graph).prepare()


def _modules(path: Path) -> set[str]:
    """What a file imports, with what of it is a name in a module as that module."""
    return {each for name in imports(path) for each in (name, name.rpartition(".")[0])}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def at_import(path: Path, modules: set[str]) -> set[str]:
    """The modules of the project that importing a file imports, less the packages that it is itself in."""
    tree = ast.parse(path.read_text())
    inner = {child for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for child in ast.walk(node)}
    late = {name for node in inner for name in named(node)}
    found = {name if name in modules else name.rpartition(".")[0] for name in imports(path) - late}
    return {name for name in found & modules if not f"{module_of(path)}.".startswith(f"{name}.")}


def named(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    return {f"{node.module}.{alias.name}" for alias in node.names} if isinstance(node, ast.ImportFrom) else set()


def test_no_modules_import_each_other_in_a_circle():
    modules = {module_of(path): path for path in FILES}
    edges = {name: at_import(path, set(modules)) for name, path in modules.items()}
    assert "kondo.lab.tasks.base" in edges["kondo.lab.tasks.bandit"]
    order = graphlib.TopologicalSorter(edges).static_order()  # raises CycleError, which names the circle
    assert set(order) >= set(modules)


def test_no_module_of_the_lab_imports_at_its_foot():
    for path in sorted((ROOT / "kondo").rglob("*.py")):
        kinds = ["import" if named(node) else type(node).__name__ for node in ast.parse(path.read_text()).body]
        defined = [i for i, kind in enumerate(kinds) if kind in ("ClassDef", "FunctionDef", "Assign", "AnnAssign")]
        assert not defined or "import" not in kinds[defined[0] :], path


def test_the_lab_asks_nothing_whether_it_has_an_attribute():
    """A capability is declared: kondo/lab/capabilities.py."""
    for path in sorted((ROOT / "kondo" / "lab").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "hasattr", path
                assert node.func.id != "getattr" or len(node.args) < 3 or "Loader" in ast.dump(node), path


def test_no_function_is_longer_than_60_lines_and_no_module_than_350():
    """Kernels excepted."""
    for path in sorted((ROOT / "kondo").rglob("*.py")):
        if "kernels" in path.parts:
            continue
        text = path.read_text()
        assert len(text.splitlines()) <= 350, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path} {node.name}"


@pytest.mark.slow
def test_the_library_needs_nothing_of_the_lab_and_who_reads_files_nothing_of_torch():
    for statement, absent in (
        ("import kondo", "torch"),
        ("from kondo import *", "kondo.lab"),
        ("import kondo.lab.records, kondo.lab.interrupts", "torch"),
        ("import kondo.lab.records, kondo.lab.interrupts", "numpy"),
        ("import analysis.report", "torch"),
    ):
        found = f"[name for name in sys.modules if f'{{name}}.'.startswith({absent + '.'!r})]"
        check = f"import sys; {statement}; print({found})"
        done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, cwd=ROOT, check=True)
        assert done.stdout == "[]\n", statement


def test_every_public_name_of_kondo_is_there_when_it_is_used_and_no_other():
    assert set(kondo._HOMES) == set(kondo.__all__) - {"__version__"}
    assert all(getattr(kondo, name).__name__ == name for name in kondo._HOMES)
    assert set(kondo.__all__) <= set(dir(kondo))
    with pytest.raises(AttributeError, match="module 'kondo' has no attribute 'joy'"):
        _ = kondo.joy
