"""Which modules of a project are run where they are imported, for what that does."""

from __future__ import annotations

import pytest

from gradguard_lint.project import setting_up
from gradguard_lint.project.modules import Modules
from gradguard_lint.project.reader import Reader

FUNCTION = b"import torch\ndef norm(n):\n    m = torch.ones(n, n)\n    return (m @ m).norm()\n"
METHOD = b"class Net:\n    def forward(self, x):\n        return x @ self.w\n"


@pytest.mark.parametrize(
    ("source", "does"),
    [
        (FUNCTION, False),
        (METHOD, False),
        (FUNCTION + b"def main():\n    norm(3)\n", False),
        (FUNCTION + b"if __name__ == '__main__':\n    norm(3)\n", False),
        (FUNCTION + b"NORM = norm(3)\n", True),
        (b"import torch\nSQUARE = torch.ones(3, 3) @ torch.ones(3, 3)\n", True),
    ],
)
def test_a_module_computes_where_its_own_code_calls_for_it(source, does):
    assert setting_up.sets_up(source) is does


def test_what_an_import_leads_to_is_told_by_name(tmp_path):
    (tmp_path / "main.py").write_text("import outer\n")
    (tmp_path / "outer.py").write_text("import inner, plain\n")
    (tmp_path / "inner.py").write_text("import torch\ntorch.manual_seed(3)\n")
    (tmp_path / "plain.py").write_text("import torch\n")
    project = Modules(str(tmp_path / "main.py"), Reader([str(tmp_path)]))
    assert project.setting_up("outer") == {"inner"}
    assert project.setting_up("plain") == frozenset()
