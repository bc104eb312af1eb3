"""Tries the installed package in an empty folder: PYTHON .ci/try_installed.py VERSION.

It runs with the Python of an environment that holds `pytest-gradguard[lsp]` and nothing else, and
needs no network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import distribution
from pathlib import Path

FILES = {
    "test_sum.py": "def test_sum():\n    assert 1 + 1 == 2\n",
    "program.py": """\
import tensorflow as tf
import torch
from joblib import Parallel, delayed


def work(k):
    return torch.ones(3, device="cuda").sum().item() * k


if __name__ == "__main__":
    Parallel(n_jobs=2)(delayed(work)(k) for k in range(3))
    tf.map_fn(abs, tf.ones(3), parallel_iterations=4)
""",
    ".gitignore": "build/**/*.py\n!build/kept.py\n",
    "pyproject.toml": '[project]\nname = "tried"\ndependencies = ["tensorflow>=2"]\n',
}
"""Together they make the package use all that it depends on."""
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"processId": None, "rootUri": None, "capabilities": {}},
}


def run(folder: str, *arguments: str, status: int = 0, stdin: bytes = b"") -> str:
    """What a command of the environment prints.

    Raises:
        SystemExit: it ended with another status.
    """
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=environment,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
    )
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != status:
        raise SystemExit(f"{' '.join(arguments)} ended with status {done.returncode}:\n{text}")
    return text


def check_files() -> None:
    """Check what the wheel has installed."""
    files = {file.as_posix() for file in distribution("pytest-gradguard").files or ()}
    assert {"pytest_gradguard/py.typed", "gradguard_lint/py.typed"} <= files
    assert any(file.endswith(".dist-info/licenses/LICENSE") for file in files)
    tops = {file.partition("/")[0] for file in files if not file.startswith("..")}
    packages = {top for top in tops if not top.endswith(".dist-info")}
    assert packages == {"pytest_gradguard", "gradguard_lint"}, packages
    assert not [file for file in files if "test_" in file.rpartition("/")[2]]


def check_commands(folder: str, version: str) -> None:
    """Run each command once."""
    for name, text in FILES.items():
        Path(folder, name).write_text(text, encoding="utf-8")
    assert run(folder, "pytest_gradguard", "--version").split()[-1] == version
    said = run(
        folder, "pytest", "--gradguard", "--gradguard-html=report.html", "-p", "no:cacheprovider"
    )
    assert "gradguard: on" in said, said
    assert "1 passed" in said, said
    lint = ("pytest_gradguard", "lint", "--no-cache")
    found = json.loads(run(folder, *lint, "--output-format=json", status=1))
    assert [one["code"] for one in found["findings"]] == ["GG201", "GG403"], found
    repaired = run(folder, *lint, "--diff", "--unsafe-fixes", status=1)
    assert "+    tf.map_fn(abs, tf.ones(3))\n" in repaired, repaired
    assert "GG101" in run(folder, "pytest_gradguard", "explain", "GG101")
    run(folder, "pytest_gradguard", "doctor")
    body = json.dumps(INITIALIZE).encode()
    message = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    assert '"capabilities"' in run(folder, "pytest_gradguard", "server", stdin=message)
    left = {*os.listdir(folder)} - {"__pycache__"}
    assert left == FILES.keys() | {"report.html"}, left


def main() -> None:
    check_files()
    with tempfile.TemporaryDirectory() as folder:
        check_commands(folder, sys.argv[1])


if __name__ == "__main__":
    main()
