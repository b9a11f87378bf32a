"""What a fresh machine meets first: make, an old Python, a torchvision that does not work, another system."""

import email
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kondo
from kondo.lab.config.cell import parse

ROOT = Path(__file__).parent.parent

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*words: str, **environment: str) -> subprocess.CompletedProcess:
    """make as from a shell, also where an outer make runs the tests."""
    outer = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "PYTHON", "VENV", "SCALE", "RUNS", "COMPARE"}
    kept = {name: value for name, value in os.environ.items() if name not in outer}
    return subprocess.run(
        ["make", *words], cwd=ROOT, env=kept | environment, capture_output=True, text=True, check=False
    )


class Recorder:
    """A virtual environment whose python writes down what it is told instead of doing it."""

    def __init__(self, folder: Path):
        self.folder, self.log = folder, folder / "calls"
        python = folder / "bin" / "python"
        python.parent.mkdir()
        python.write_text(
            f"#!{sys.executable}\nimport json, os, sys\n"
            f"print(json.dumps(sys.argv[1:]), file=open({str(self.log)!r}, 'a'))\n"
            "sys.exit(sys.argv[-1] == 'import torchvision' and 'BROKEN' in os.environ)\n"
        )
        python.chmod(0o755)
        self.ready = False

    def make(self, *words: str, **environment: str) -> list[list[str]]:
        """The words of each call of python that `make` leads to."""
        self.log.unlink(missing_ok=True)
        for stamp in (".suite", ".ready"):
            if self.ready:
                (self.folder / stamp).touch()
        make(f"VENV={self.folder}", *words, **environment).check_returncode()
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def recorder(tmp_path):
    return Recorder(tmp_path)


@needs_make
def test_folders_with_spaces_reach_the_commands_as_one_word(recorder):
    recorder.ready = True
    (call,) = recorder.make("reproduce", "RUNS=my runs", "SCALE=smoke", "FIGURES=a b", "OVERRIDES=x=1 y=2")
    assert call == [
        *["-m", "experiments.reproduce", "--scale", "smoke", "a", "b"],
        *["runs='my runs'", "hydra/launcher=joblib", "x=1", "y=2"],
    ]
    (call,) = recorder.make("figures", "RUNS=my runs", "SCALE=smoke")
    assert call == ["-m", "analysis.draw", "--runs", "my runs", "--scale", "smoke"]
    (call,) = recorder.make("report", "RUNS=my runs", "SCALE=smoke", "COMPARE=other runs")
    assert call == ["-m", "analysis.report", "--runs", "my runs", "--scale", "smoke", "--compare", "other runs"]
    (call,) = recorder.make("report")
    assert call == ["-m", "analysis.report"]
    (call,) = recorder.make("reproduce")
    assert call == ["-m", "experiments.reproduce", "--scale", "laptop", "runs='runs'", "hydra/launcher=joblib"]


@pytest.mark.parametrize("folder", ["runs", "my runs", "../a/b-c.d", "/tmp/x, y=(1)"])
def test_the_quoted_folder_is_the_folder_that_was_meant(folder):
    from experiments.compose import single

    assert single([f"runs='{folder}'"]).launch.runs == folder


@needs_make
def test_fast_tests_are_those_that_are_not_marked_slow(recorder):
    recorder.ready = True
    assert recorder.make("test-fast") == [["-m", "pytest", "-q", "-m", "not slow"]]
    assert recorder.make("test") == [["-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile"]]


@needs_make
def test_torch_is_installed_first_and_by_the_versions_of_the_constraints(recorder):
    installs = [call[3:] for call in recorder.make("setup") if call[:3] == ["-m", "pip", "install"]]
    wanted = [["torch"], ["--editable", ".[experiments]"], ["--editable", ".[dev]"]]
    options = ["--quiet", "--disable-pip-version-check", "--constraint", "constraints.txt"]
    assert installs == [[*options, *words] for words in wanted]
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line.partition("==")[0] for line in pins[1:3]] == ["torch", "torchvision"]


@needs_make
@pytest.mark.parametrize("broken", [True, False])
def test_a_torchvision_that_cannot_be_imported_is_taken_out_again(recorder, broken):
    calls = recorder.make("setup", **({"BROKEN": "yes"} if broken else {}))
    drop = ["-m", "pip", "uninstall", "--quiet", "--yes", "--disable-pip-version-check", "torchvision"]
    after = [[".[experiments]", "import torchvision"], [".[dev]", "import torchvision"]]
    lasts = [call[-1] for call in calls]
    for install, check in after:
        at = lasts.index(install)
        assert lasts[at + 1] == check
        assert (calls[at + 2 : at + 3] == [drop]) == broken


@needs_make
@pytest.mark.parametrize("made", [True, False])
def test_an_old_python_is_refused_in_a_line_before_anything_is_installed(tmp_path, made):
    """As the one that would make the environment, and as the one of an environment that is there."""
    old = tmp_path / ("venv/bin/python" if made else "python3")
    old.parent.mkdir(parents=True, exist_ok=True)
    old.write_text(
        f"#!{sys.executable}\nimport sys\nassert sys.argv[1] == '-c', sys.argv\n"
        "sys.version_info = (3, 10, 9)\nsys.executable = 'old'\nexec(sys.argv[2])\n"
    )
    old.chmod(0o755)
    words = [f"VENV={tmp_path / 'venv'}", *([] if made else [f"PYTHON={old}"])]
    done = make(*words, "setup")
    assert done.returncode
    first, *rest = done.stderr.splitlines()
    assert first.startswith("error: old is Python 3.10, and kondo needs 3.11 or newer")
    assert all(line.startswith("make") for line in rest)
    assert done.stdout == ""
    assert made or not (tmp_path / "venv").exists()


@needs_make
def test_help_names_every_target():
    text = make("help").stdout
    phony = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY:"))
    assert [line.split()[0] for line in text.splitlines()[1:]] == phony.split()[1:]


def test_python_is_asked_for_in_the_same_version_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["requires-python"] == ">=3.11"
    assert project["tool"]["ruff"]["target-version"] == "py311"
    assert project["tool"]["mypy"]["python_version"] == "3.11"
    assert "`python3` (3.11 or newer)" in (ROOT / "README.md").read_text()
    assert "(3, 11)" in (ROOT / "Makefile").read_text()


WITHOUT = """
import os, sys
del os.sched_getaffinity
import analysis.draw
assert "torch" not in sys.modules
list(analysis.draw.draw_all(["mnist_pareto"], [], "smoke"))
from experiments import launchers, reproduce, run
assert launchers.cores() >= 1
from pathlib import Path
with launchers.Joblib().open(Path()) as (submit, size):
    assert size == launchers.cores()
"""


def test_cores_are_counted_where_linux_s_own_call_is_missing():
    subprocess.run([sys.executable, "-c", WITHOUT], cwd=ROOT, check=True)


BUILD = """
import sys
from setuptools import build_meta
out = sys.argv[1]
build_meta.build_wheel(out), build_meta.build_sdist(out)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the source distribution, built from a copy."""
    pytest.importorskip("setuptools", minversion="77", reason="setuptools 77 or newer is not installed")
    folder, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for name in ("kondo", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    subprocess.run([sys.executable, "-c", BUILD, str(out)], cwd=folder, check=True, capture_output=True)
    return out


def test_the_wheel_has_the_library_and_nothing_else(built):
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        about = email.message_from_bytes(wheel.read(f"kondo-{kondo.__version__}.dist-info/METADATA"))
    modules = {str(each.relative_to(ROOT)) for each in (ROOT / "kondo").rglob("*.py")}
    assert modules <= names
    assert {name.split("/")[0] for name in names} == {"kondo", f"kondo-{kondo.__version__}.dist-info"}
    assert "kondo/py.typed" in names
    needed = [each for each in about.get_all("Requires-Dist") if "extra ==" not in each]
    assert [each.split(">=")[0] for each in needed] == ["torch", "numpy", "pyyaml"]
    assert about["Description-Content-Type"] == "text/markdown"
    assert about.get_payload(decode=True).decode().startswith("# kondo\n")


def test_the_source_distribution_has_what_a_wheel_is_built_from_and_no_tests(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "kondo/gate.py"} <= names
    assert not [name for name in names if name.startswith("tests")]


def test_the_version_is_told_the_same_everywhere():
    assert re.search(rf"^version: {re.escape(kondo.__version__)}$", (ROOT / "CITATION.cff").read_text(), flags=re.M)
    assert re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[1] == kondo.__version__


def test_the_version_is_no_part_of_what_a_run_is(monkeypatch):
    plain = {"task": {"name": "bandit"}, "method": {"name": "dgk"}, "steps": 10}
    key = parse(plain).key()
    monkeypatch.setattr(kondo, "__version__", "9.9.9")
    monkeypatch.setattr("kondo.lab.training.__version__", "9.9.9")
    assert parse(plain).key() == key
    assert kondo.__version__ not in str(parse(plain).plain())


def test_the_pythons_that_are_promised_are_those_that_ci_runs():
    (workflow,) = (ROOT / ".github" / "workflows").glob("*.yml")
    run = set(re.findall(r'python-version: "([\d.]+)"', workflow.read_text()))
    words = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert {word.rpartition(" ")[2] for word in words if re.search(r":: 3\.\d+$", word)} == run


def test_every_pin_is_one_version_of_one_package_as_pip_and_uv_both_take_it():
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9][\w.-]*==[\w.]+", line) for line in pins)
    names = [re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in pins]
    assert len(set(names)) == len(names)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    every = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    wanted = {re.match(r"[\w-]+", each)[0].lower().replace("_", "-") for each in every} - {"kondo"}
    assert wanted <= set(names)
    assert closure("kondo", ("dev", "docs", "lm", "trl", "ray", "slurm", "experiments")) <= set(names) | {"kondo"}


def closure(name: str, extras: tuple[str, ...]) -> set[str]:
    """The packages that one needs, and those that they need, of those that are installed."""
    found, left = set(), [(name, extras)]
    while left:
        name, extras = left.pop()
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of an extra that this environment has not
        for text in needed:
            each = Requirement(text)
            if each.marker and not any(each.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                continue
            if canonicalize_name(each.name) not in found or each.extras:
                left.append((each.name, tuple(each.extras)))
            found.add(canonicalize_name(each.name))
    return {each for each in found if _installed(each)}


def _installed(name: str) -> bool:
    return next(iter(importlib.metadata.distributions(name=name)), None) is not None


README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_wheel_and_source_distribution_install_in_an_empty_environment_and_the_readme_s_code_runs(built, tmp_path):
    """torch and its kin are lent by a path file: they are large, and none of ours."""
    snippet = README.partition("```python\n")[2].partition("```")[0]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "empty")], check=True)
    python = str(tmp_path / "empty" / "bin" / "python")
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    folder = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
    lent = tmp_path / "lent"
    lent.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if "kondo" not in each.name:
            (lent / each.name).symlink_to(each)
    Path(folder, "lent.pth").write_text(f"{lent}\n")
    for package in (next(built.glob("*.whl")), next(built.glob("*.tar.gz"))):
        install = [
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--force-reinstall",
        ]
        subprocess.run([sys.executable, *install, str(package)], check=True, cwd=tmp_path)
        where = "import kondo.lab; print(kondo.__file__)"
        code = [python, "-c", f"{where}\n{snippet}"]
        ran = subprocess.run(code, check=True, cwd=tmp_path, capture_output=True, text=True)
        assert ran.stdout.strip().startswith(folder)


def test_what_would_be_uploaded_is_as_the_index_wants_it(built):
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())]
    assert subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize(("module", "extra"), [("transformers", "transformers"), ("trl", "trl")])
def test_an_integration_without_its_package_says_what_to_install(module, extra):
    code = f"import sys; sys.modules[{extra!r}] = None; import kondo.integrations.{module}"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert f"pip install 'kondo[{extra}]'" in ran.stderr.splitlines()[-1]
