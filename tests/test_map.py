"""Who imports whom: the two products, and what only reads files, stay apart."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {"hydra", "omegaconf", "wandb", "matplotlib", "pandas"}
MAP = {
    "library": ({"library"}, HEAVY),
    "lab": ({"library", "lab"}, HEAVY),
    "analysis": ({"analysis", "claims"}, {"torch", "hydra", "omegaconf", "wandb"}),
    "claims": ({"analysis", "claims"}, {"torch", "hydra", "omegaconf", "wandb", "matplotlib"}),
    "experiments": ({"library", "lab", "analysis", "claims", "experiments"}, {"matplotlib"}),
}
"""{part: (the parts that it may import, the packages that it may not)}"""


def part(module: str) -> str | None:
    """Which part of the project a module belongs to; None for what is installed."""
    top = module.split(".")[0]
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


@pytest.mark.slow
def test_importing_the_library_imports_nothing_of_the_lab_and_analysis_nothing_of_torch():
    for statement, absent in (("import kondo", "kondo.lab"), ("import analysis.report", "torch")):
        check = (
            f"{statement}, sys; print([m for m in sys.modules if m == {absent!r} or m.startswith({absent + '.'!r})])"
        )
        done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, cwd=ROOT, check=True)
        assert done.stdout == "[]\n", statement
