"""Who imports whom: the two products, and what only reads files, stay apart."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {"hydra", "omegaconf", "wandb", "matplotlib", "pandas"}
MAP = {
    "library": ({"library"}, HEAVY),
    "lab": ({"library", "lab"}, HEAVY),
    "analysis": ({"analysis"}, {"torch", "hydra", "omegaconf", "wandb"}),
    "experiments": ({"library", "lab", "analysis", "experiments"}, {"matplotlib"}),
}
"""{part: (the parts that it may import, the packages that it may not)}"""


def part(module: str) -> str | None:
    """Which part of the project a module belongs to; None for what is installed."""
    top = module.split(".")[0]
    if top == "kondo":
        return "lab" if module.startswith("kondo.lab") else "library"
    return {"analysis": "analysis", "experiments": "experiments", "hydra_plugins": "experiments"}.get(top)


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


FILES = {
    path: part(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for folder in ("kondo", "analysis", "experiments", "hydra_plugins")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "extensions" not in path.parts
}


@pytest.mark.parametrize("name", MAP)
def test_a_part_imports_only_what_the_map_allows(name):
    allowed, refused = MAP[name]
    chosen = [path for path, belongs in FILES.items() if belongs == name]
    assert len(chosen) > 5
    for path in chosen:
        for module in imports(path):
            own = part(module)
            assert own is None or own in allowed, f"{path.relative_to(ROOT)} imports {module}"
            assert module.split(".")[0] not in refused, f"{path.relative_to(ROOT)} imports {module}"


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
    """Kernels excepted, and run folders."""
    for path in sorted((ROOT / "kondo").rglob("*.py")):
        if "kernels" in path.parts or path == ROOT / "kondo" / "lab" / "runs.py":
            continue
        text = path.read_text()
        assert len(text.splitlines()) <= 350, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path} {node.name}"


@pytest.mark.slow
def test_importing_the_library_imports_nothing_of_the_lab_and_analysis_nothing_of_torch():
    for statement, absent in (("import kondo", "kondo.lab"), ("import analysis.report", "torch")):
        check = (
            f"{statement}, sys; print([m for m in sys.modules if m == {absent!r} or m.startswith({absent + '.'!r})])"
        )
        done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, cwd=ROOT, check=True)
        assert done.stdout == "[]\n", statement
