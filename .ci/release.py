"""Builds and checks a release. `.github/workflows/release.yml` runs it, and so do the tests.

python .ci/release.py check v1.2.3      fail unless every file names this version
python .ci/release.py build FOLDER      make the sdist and the wheel, and check both
python .ci/release.py notes             print the section of CHANGELOG.md
python .ci/release.py recipe SDIST      print the conda recipe of this sdist
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SECTION = re.compile(r"^## (\S+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)

_VERSIONS = {
    "CITATION.cff": r"^version: (.*)$",
    "recipe/meta.yaml": r'set version = "(.*)"',
    **dict.fromkeys(("README.md", "docs/ci.md", "docs/lint.md"), r"rev: v(\S+)"),
}
"""What names the version, beside the package and the changelog."""


def read(name: str) -> str:
    """The text of a file of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def project_version() -> str:
    """The version that the build reads, too."""
    found = re.search(r'^__version__ = "(.*)"$', read("pytest_gradguard/__init__.py"), re.MULTILINE)
    assert found is not None
    return found[1]


def changes() -> tuple[str, str]:
    """The version and the text of the first section of the changelog."""
    found = _SECTION.search(read("CHANGELOG.md"))
    return (found[1], found[2].strip()) if found else ("none", "")


def mismatches(tag: str) -> list[str]:
    """Every place that names another version than the tag does."""
    named = {"pytest_gradguard/__init__.py": [project_version()], "CHANGELOG.md": [changes()[0]]}
    for name, pattern in _VERSIONS.items():
        named[name] = re.findall(pattern, read(name), re.MULTILINE)
    return [
        f"{name} names version {', '.join(versions) or 'none'}, the tag is {tag}"
        for name, versions in named.items()
        if {f"v{version}" for version in versions} != {tag}
    ]


def build(folder: Path) -> int:
    """Build the wheel from the sdist, and check both.

    Returns:
        The exit status of the first step that failed, or 0.
    """
    python, sdist = [sys.executable, "-m"], f"pytest_gradguard-{project_version()}.tar.gz"
    wheel = f"pytest_gradguard-{project_version()}-py3-none-any.whl"
    files = [str(folder.resolve() / name) for name in (sdist, wheel)]
    steps = [
        [*python, "build", "--no-isolation", "--outdir", str(folder.resolve()), "."],
        [*python, "twine", "check", "--strict", *files],
        [*python, "check_wheel_contents", files[1]],
        # The project has no address for mail: questions go to the issues.
        [*python, "pyroma", "--min=10", "--skip-tests=AuthorEmail", files[0]],
    ]
    statuses = (subprocess.run(step, cwd=ROOT, check=False).returncode for step in steps)
    return next((status for status in statuses if status), 0)


def recipe(sdist: Path) -> str:
    """The conda recipe for a release on PyPI, as conda-forge takes it."""
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    text, count = re.subn(r'(set sha256 = )".*?"', rf'\g<1>"{digest}"', read("recipe/meta.yaml"))
    assert count == 1
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("notes")
    for name, argument in (("check", "tag"), ("build", "folder"), ("recipe", "sdist")):
        commands.add_parser(name).add_argument(argument)
    args = parser.parse_args()
    if args.command == "build":
        return build(Path(args.folder))
    if args.command == "check":
        found = mismatches(args.tag)
        print(*found, sep="\n", file=sys.stderr, end="\n" if found else "")
        return 1 if found else 0
    print(changes()[1] if args.command == "notes" else recipe(Path(args.sdist)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
