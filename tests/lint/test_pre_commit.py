"""The real `pre-commit`, with this repository as the hook's source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import repository

pytest.importorskip("pre_commit")
if shutil.which("git") is None:
    pytest.skip("needs git", allow_module_level=True)

IDENTITY = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
}  # fmt: skip


def run(command, cwd, home):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment.update(IDENTITY, PRE_COMMIT_HOME=str(home))
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """This working tree as a repository of its own: what is committed, and what is about to be."""
    folder = repository.copy_to(tmp_path_factory.mktemp("source"))
    home = tmp_path_factory.mktemp("home")
    for command in (["git", "init", "-q"], ["git", "add", "-A"], ["git", "commit", "-qm", "all"]):
        done = run(command, folder, home)
        assert done.returncode == 0, done.stderr
    revision = run(["git", "rev-parse", "HEAD"], folder, home).stdout.strip()
    return folder, revision, home


HELPER = "import torch\n\n\ndef work(k):\n    return torch.ones(3).cuda()[k]\n"
SCRIPT = """\
from joblib import Parallel, delayed

from helper import work

Parallel(n_jobs=2)(delayed(work)(k) for k in range(3))
"""


REPAIRED = """\
import torch
from joblib import Parallel, delayed


def predict(net, batch):
    return net(batch).detach()


net = torch.nn.Linear(3, 1)
outputs = Parallel(n_jobs=2)(delayed(predict)(net, torch.ones(2, 3)) for _ in range(3))
"""


def test_the_hooks_check_what_is_staged_and_the_whole_project(source, tmp_path, worker):
    folder, revision, home = source
    (tmp_path / "train.py").write_text(worker)
    (tmp_path / "generated.py").write_text(worker)
    (tmp_path / "pyproject.toml").write_text("[tool.gradguard]\nexclude = ['generated.py']\n")
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / ".pre-commit-config.yaml").write_text(
        f"repos:\n- repo: {folder}\n  rev: {revision}\n"
        "  hooks:\n  - id: gradguard-lint\n  - id: gradguard-lint-project\n"
        "  - id: gradguard-lint\n    alias: repair\n    args: [--fix]\n"
    )

    def git(*arguments):
        assert run(["git", *arguments], tmp_path, home).returncode == 0

    def hook(name, *arguments):
        git("add", "-A")
        command = [sys.executable, "-m", "pre_commit", "run", name, *arguments]
        done = run(command, tmp_path, home)
        return done.returncode, done.stdout + done.stderr

    git("init", "-q")
    status, said = hook("gradguard-lint", "--all-files")
    if "Failed to establish a new connection" in said or "No matching distribution" in said:
        pytest.skip("the hook's requirements cannot be installed here")
    assert status == 1, said
    assert "warning[GG201] cuda-init-in-worker" in said
    assert "train.py:6" in said
    assert "generated.py" not in said

    (tmp_path / "train.py").write_text(worker.replace("n_jobs=2", "n_jobs=1"))
    status, said = hook("gradguard-lint", "--all-files")
    assert status == 0, said
    assert "Passed" in said

    (tmp_path / "predict.py").write_text(REPAIRED.replace(".detach()", ""))
    status, said = hook("repair", "--files", "predict.py")
    assert status == 1, said
    assert "files were modified by this hook" in said
    assert (tmp_path / "predict.py").read_text() == REPAIRED
    assert hook("repair", "--files", "predict.py")[0] == 0

    git("commit", "-qm", "all", "--no-verify")
    (tmp_path / "helper.py").write_text(HELPER)
    for name in ("gradguard-lint", "gradguard-lint-project"):
        status, said = hook(name)  # the first is given the helper alone, and finds who calls it
        assert status == 1, said
        assert "helper.py:5" in said
