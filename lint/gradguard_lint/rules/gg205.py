"""scikit-learn runs an estimator that lives on a GPU in several jobs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import Program, Step
from gradguard_lint.domain.values import Site
from gradguard_lint.fixes.changes import Fix, SetKeyword
from gradguard_lint.fixes.recipes import keyword
from gradguard_lint.rules.base import Examples, Report

CODE = "GG205"


def check(program: Program) -> Iterator[Report]:
    for effect in program.kinds("gpu-search"):
        made = effect.place
        trace = () if made is None else (Step(made, "the estimator is given the GPU here"),)
        yield Report(
            effect.site,
            f"`{effect.what}` runs several jobs at once, and each trains its estimator on the "
            "same GPU.",
            trace,
            fix=_one_job(effect.site),
        )


def _one_job(site: Site) -> Fix | None:
    if not isinstance(site.node, ast.Call) or keyword(site.node, "n_jobs") is None:
        return None
    change = SetKeyword(site.module, site.node, "n_jobs", "1")
    return Fix("unsafe", "run one job at a time", (change,))


BAD: Examples = {
    "grid search": """\
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn

net = NeuralNetClassifier(nn.Linear, device="cuda")
search = GridSearchCV(net, {"lr": [0.1, 0.01]}, n_jobs=4)  # GG205
print(search.n_jobs)  # repaired: 1
""",
    "boosted trees in a pipeline": """\
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from xgboost import XGBClassifier

model = make_pipeline(StandardScaler(), XGBClassifier(device="cuda"))


def score(x, y, jobs):
    return cross_val_score(model, x, y, n_jobs=jobs)  # GG205
""",
}

FIXED: Examples = {
    "grid search": """\
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn

net = NeuralNetClassifier(nn.Linear, device="cuda")
search = GridSearchCV(net, {"lr": [0.1, 0.01]}, n_jobs=1)  # GG205
print(search.n_jobs)  # repaired: 1
""",
    "boosted trees in a pipeline": """\
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from xgboost import XGBClassifier

model = make_pipeline(StandardScaler(), XGBClassifier(device="cuda"))


def score(x, y, jobs):
    return cross_val_score(model, x, y, n_jobs=1)  # GG205
""",
}

GOOD: Examples = {
    "one job, or no GPU": """\
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn

net = NeuralNetClassifier(nn.Linear, device="cuda")
search = GridSearchCV(net, {"lr": [0.1, 0.01]}, n_jobs=1)
on_cpu = GridSearchCV(NeuralNetClassifier(nn.Linear), {"lr": [0.1]}, n_jobs=4)
""",
}
