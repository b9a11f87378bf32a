"""Run the test suite that PyPI's kondo-gate 0.1.0 published, against kondo under the name kondo_gate.

python -m tests.peer
"""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

import kondo

RELEASE = "kondo-gate==0.1.0"
TESTS = 60


class Count:
    passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed += report.when == "call" and report.passed


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", RELEASE]
        subprocess.run([*download, "--dest", folder], check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        sys.modules["kondo_gate"] = kondo
        count = Count()
        options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", folder]
        code = pytest.main([*options, str(next(Path(folder).glob("*/tests")))], plugins=[count])
    if count.passed != TESTS:
        print(f"{count.passed} of the {TESTS} tests of {RELEASE} passed", file=sys.stderr)
        return 1
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
