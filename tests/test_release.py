"""A release can be made: it is built and checked, and works in an empty environment, offline."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
import repository

from pytest_gradguard import __version__

ROOT = Path(__file__).resolve().parents[1]
RELEASE = ".ci/release.py"


def run(*command: str | Path, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    words = list(map(str, command))
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist and the wheel, which have passed their checks."""
    for tool in ("build", "check_wheel_contents", "hatchling", "pyroma", "twine"):
        pytest.importorskip(tool)
    folder = tmp_path_factory.mktemp("dist")
    clone = repository.copy_to(tmp_path_factory.mktemp("clone"))
    done = run(sys.executable, RELEASE, "build", folder, folder=clone)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def needed(name: str, extra: str = "", found: dict[str, Distribution] | None = None):
    """What an installed distribution needs here, and what that needs in turn."""
    requirements = pytest.importorskip("packaging.requirements")
    known = {} if found is None else found
    for text in distribution(name).requires or ():
        one = requirements.Requirement(text)
        if one.name not in known and (one.marker is None or one.marker.evaluate({"extra": extra})):
            known[one.name] = distribution(one.name)
            needed(one.name, "", known)
    return known


def pack(installed: Distribution, folder: Path) -> None:
    """Make a wheel of an installed distribution again."""
    files = {
        file.as_posix(): Path(str(file.locate())).read_bytes()
        for file in installed.files or ()
        if ".." not in file.parts and file.suffix != ".pyc"
    }
    about = next(name.partition("/")[0] for name in files if name.endswith(".dist-info/METADATA"))
    for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
        files.pop(f"{about}/{name}", None)
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f'"{name}",sha256={digest},{len(data)}')
    files[f"{about}/RECORD"] = "\n".join([*lines, f'"{about}/RECORD",,\n']).encode()
    tags = re.search(r"^Tag: (.*)$", files[f"{about}/WHEEL"].decode(), re.MULTILINE)
    assert tags
    with zipfile.ZipFile(folder / f"{about.removesuffix('.dist-info')}-{tags[1]}.whl", "w") as file:
        for name, data in files.items():
            file.writestr(name, data)


def test_the_wheel_works_in_an_empty_environment(dist: Path, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for one in needed("pytest-gradguard", "lsp").values():
        pack(one, wheels)
    [wheel] = dist.glob("*.whl")
    made = run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty")
    assert made.returncode == 0, made.stderr
    python = tmp_path / "empty" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    offline = ["--no-index", "--find-links", wheels, "--disable-pip-version-check"]
    installed = run(*pip, *offline, f"{wheel}[lsp]")
    assert installed.returncode == 0, installed.stdout + installed.stderr
    tried = run(python, ROOT / ".ci/try_installed.py", __version__, folder=tmp_path)
    assert tried.returncode == 0, tried.stdout + tried.stderr


def test_the_sdist_is_whole(dist: Path) -> None:
    [sdist] = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"LICENSE", "CHANGELOG.md", "tests/test_release.py", "recipe/meta.yaml"} <= names
    assert not [name for name in names if ".venv" in name or "__pycache__" in name]


def test_only_the_tag_of_this_version_is_released(tmp_path: Path) -> None:
    right = run(sys.executable, RELEASE, "check", f"v{__version__}")
    assert (right.returncode, right.stderr) == (0, "")
    wrong = run(sys.executable, RELEASE, "check", "v99.0.0")
    assert wrong.returncode == 1
    named = [line.partition(" ")[0] for line in wrong.stderr.splitlines()]
    assert named == [
        "pytest_gradguard/__init__.py",
        "CHANGELOG.md",
        "CITATION.cff",
        "recipe/meta.yaml",
        "README.md",
        "docs/ci.md",
        "docs/lint.md",
    ]


def test_the_release_says_what_has_changed() -> None:
    notes = run(sys.executable, RELEASE, "notes").stdout
    assert "**" in notes
    assert "\n## " not in notes
    assert notes.strip() in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_recipe_gets_the_hash_of_the_sdist(tmp_path: Path) -> None:
    (tmp_path / "some.tar.gz").write_bytes(b"sdist")
    made = run(sys.executable, RELEASE, "recipe", tmp_path / "some.tar.gz").stdout
    assert f'set sha256 = "{hashlib.sha256(b"sdist").hexdigest()}"' in made
    assert f'set version = "{__version__}"' in made


def rendered_recipe():
    jinja2, yaml = pytest.importorskip("jinja2"), pytest.importorskip("yaml")
    text = (ROOT / "recipe/meta.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(jinja2.Template(text).render(python_min="3.10", PYTHON="python"))


def test_the_recipe_needs_what_the_package_needs() -> None:
    """One package for all Pythons: what only some of them need, it always brings."""
    recipe = rendered_recipe()
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    python = re.search(r'^requires-python = "(.*)"', project, re.MULTILINE)
    build = re.search(r'^requires = \["(.*)"\]', project, re.MULTILINE)
    assert listed
    assert python
    assert build
    needs = re.findall(r'"([^";]+?)(?:;.*)?",', listed[1])
    run_needs = [one.replace(" ", "") for one in recipe["requirements"]["run"]]
    assert run_needs == [f"python{python[1]}", *needs]
    assert build[1] in [one.replace(" ", "") for one in recipe["requirements"]["host"]]


def test_the_recipe_has_the_commands_of_the_package() -> None:
    scripts = {
        f"{one.name} = {one.value}"
        for one in distribution("pytest-gradguard").entry_points
        if one.group == "console_scripts"
    }
    assert set(rendered_recipe()["build"]["entry_points"]) == scripts
