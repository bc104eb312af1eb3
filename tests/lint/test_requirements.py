"""What a project asks for decides whether what newer versions lack is an error."""

from __future__ import annotations

import pytest

PROGRAM = "from keras.wrappers.scikit_learn import KerasClassifier\n"
USED = "import tensorflow as tf\n\nmake = tf.keras.wrappers.scikit_learn.KerasClassifier\n"


def severity(project, *args):
    report = project.lint("--min-severity", "info", *args, json_output=True).json
    (found,) = report["findings"]
    assert found["code"] == "GG401"
    return found["severity"]


@pytest.fixture
def pinned(project):
    """Whether what a file of the project says makes the finding one of severity info."""
    project.write("src/app/train.py", PROGRAM)
    project.write("setup.py", "")

    def is_pinned(name, text):
        path = project.write(name, text)
        found = severity(project)
        path.unlink()
        if name == "setup.py":
            project.write("setup.py", "")
        return {"info": True, "error": False}[found]

    return is_pinned


def test_the_message_names_both_versions(project):
    project.write("train.py", PROGRAM)
    project.write("requirements.txt", "numpy\nKeras==2.2.4  # as in the paper\n")
    (found,) = project.lint("--min-severity", "info", json_output=True).json["findings"]
    assert found["message"] == (
        "`keras.wrappers.scikit_learn.KerasClassifier` is gone since Keras 2.13; "
        "this project asks for `Keras==2.2.4` (requirements.txt)."
    )
    assert found["edits"] is None
    assert project.lint().status == 0


def test_without_a_version_it_is_an_error_that_names_the_first_without_it(project):
    project.write("train.py", PROGRAM)
    project.write("requirements.txt", "keras\n")
    (found,) = project.lint(json_output=True).json["findings"]
    assert found["severity"] == "error"
    assert found["message"].endswith(
        "is gone since Keras 2.13: importing or using it raises an error."
    )


@pytest.mark.parametrize("asked", [
    "keras==2.2.4",
    "Keras===2.12.0",
    "keras <= 2.12",
    "keras<2.13",
    "keras>=2.4,<2.13.0",
    "keras~=2.4.1",
    "keras==2.12.*",
    "keras==1.*",
    "keras==2.12.0rc1",
    "keras<2.13.0rc0",
    "keras<=2.13,!=2.13.*",
    "keras=2.2.4=py36_0",
    "keras (==2.2.4)",
    "tensorflow-gpu==1.14 ; python_version < '3.8'",
    "tensorflow_cpu[and-cuda]==2.4.0 --hash=sha256:00",
    "tensorflow==2.4.0 \\\n    --hash=sha256:00",
])  # fmt: skip
def test_only_older_versions_fit(pinned, asked):
    assert pinned("requirements.txt", asked + "\n")


@pytest.mark.parametrize("asked", [
    "keras",
    "keras>=2.2",
    "keras!=2.13",
    "keras!=2.13.*,<3",
    "keras>2.12,!=2.13",
    "keras<2.2,>=2.4",
    "keras<3",
    "keras<=2.13",
    "keras~=2.4",
    "keras==2.*",
    "keras==2.13.0rc0",
    "keras==3.0",
    "keras-tuner==1.0",
    "tensorflow-datasets==1.0",
    "# keras==2.2.4",
    "keras @ https://example.org/keras-2.2.4.zip",
    "keras=>2.2",
    "keras==2.2.4\ntensorflow==2.15",
    "tensorflow==2.4; python_version<'3.8'\ntensorflow==2.15; python_version>='3.8'",
])  # fmt: skip
def test_newer_versions_may_fit(pinned, asked):
    assert not pinned("requirements.txt", asked + "\n")


@pytest.mark.parametrize(("name", "text"), [
    ("src/app/requirements.txt", "keras==2.2.4"),
    ("requirements-dev.txt", "keras==2.2.4"),
    ("requirements/base.txt", "keras==2.2.4"),
    ("requirements.txt", b"\xff\xfe" + "keras==2.2.4\n".encode("utf-16-le")),
    ("pyproject.toml", "[project]\ndependencies = ['keras<2.10']"),
    ("pyproject.toml", "[project.optional-dependencies]\ntf = ['tensorflow<2.10; os_name']"),
    ("pyproject.toml", "[dependency-groups]\ntf = ['tensorflow<2.10', {include-group = 'x'}]"),
    ("pyproject.toml", "[tool.poetry.dependencies]\nkeras = '2.2.4'"),
    ("pyproject.toml", "[tool.poetry.dependencies]\ntensorflow = '^1.14'"),
    ("pyproject.toml", "[tool.poetry.dependencies]\nkeras = {version = '~2.4', extras = ['a']}"),
    ("pyproject.toml", "[tool.poetry.group.old.dependencies]\nkeras = [{version = '2.2.4'}]"),
    ("setup.cfg", "[options]\ninstall_requires =\n    numpy\n    keras==2.2.4\n"),
    ("setup.cfg", "[options.extras_require]\ntf =\n    keras==2.2.4\n"),
    ("setup.py", "import setuptools\nsetuptools.setup(install_requires=['keras==2.2.4'])"),
    ("setup.py", "NEEDS = ('keras==2.2.4',)\nsetup(install_requires=NEEDS)"),
    ("setup.py", "setup(extras_require={'tf': ['tensorflow<2']})"),
    ("Pipfile", "[packages]\nkeras = '==2.2.4'"),
    ("pyproject.toml", "[tool.poetry.dependencies]\nkeras = '^0.3.1'"),
    ("environment.yml", "dependencies:\n  - python=3.6\n  - conda-forge::keras=2.2\n"),
    ("environment.yml", "dependencies:\n  - tensorflow-gpu=1.14.0=mkl_py37h45c423b_0\n"),
    ("environment.yml", "dependencies:\n  - keras 2.2.*\n  - 'tensorflow>=2.2,<2.4'\n"),
    ("environment.yaml", "dependencies:\n  - pip:\n    - 'keras==2.2.4'  # old\n"),
])  # fmt: skip
def test_each_file_that_says_what_a_project_asks_for(pinned, name, text):
    assert pinned(name, text)


@pytest.mark.parametrize(("name", "text"), [
    ("requirements.txt", b"keras==2.2.4\n\xff"),
    ("pyproject.toml", "[project]\ndependencies = 'keras<2.10'"),
    ("pyproject.toml", "[tool.poetry]\ndependencies = 1"),
    ("pyproject.toml", "[tool.poetry.dependencies]\nkeras = '^2.4'"),
    ("pyproject.toml", "[tool.poetry.dependencies]\nkeras = '*'\ntensorflow = '1.14 || 2.15'"),
    ("setup.cfg", "keras==2.2.4"),
    ("setup.py", "setup(install_requires=read('requirements'))"),
    ("setup.py", "setup(install_requires=['keras==2.2.4'"),
    ("Pipfile", "[packages\nkeras = '==2.2.4'"),
    ("environment.yml", "dependencies:\n  - keras=2\n  - tensorflow=1.14|2.15\n"),
])  # fmt: skip
def test_what_is_not_understood_asks_for_nothing(pinned, name, text):
    assert not pinned(name, text)


def test_nothing_above_the_project_counts_and_the_nearest_decides(project):
    project.write("requirements.txt", "keras==2.2.4")
    project.write("lib/setup.py", "")
    project.write("lib/a/train.py", USED)
    assert severity(project) == "error"
    project.write("lib/requirements.txt", "keras==2.2.4")
    assert severity(project) == "info"
    project.write("lib/a/requirements.txt", "keras>=3")
    assert severity(project) == "error"


def test_where_no_folder_around_asks_for_it_all_others_of_the_project_do(project):
    project.write("src/train.py", PROGRAM)
    project.write("src/requirements.txt", "numpy")
    project.write("backend/requirements.txt", "tensorflow==2.10.0")
    assert severity(project) == "info"
    project.write("docs/requirements.txt", "sphinx")
    project.write("venv/requirements.txt", "tensorflow>=2.16")
    assert severity(project) == "info"
    asked = project.write("frontend/requirements.txt", "tensorflow")
    assert severity(project) == "error"
    asked.write_text("keras<2.9")
    assert severity(project) == "info"
    project.write("src/setup.py", "")  # a project of its own
    assert severity(project) == "error"


def test_the_cache_does_not_keep_what_a_project_asked_for(project):
    project.write("train.py", PROGRAM)
    for text, expected in (("keras", "error"), ("keras<2.13", "info"), ("keras>=3", "error")):
        project.write("requirements.txt", text)
        assert severity(project) == expected
