"""scikit-learn runs an estimator that lives on a GPU in several jobs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradguard_lint.domain.effects import Effect, Program, Step
from gradguard_lint.domain.payloads import LibraryUse
from gradguard_lint.domain.values import Site
from gradguard_lint.fixes.changes import Fix, SetKeyword
from gradguard_lint.fixes.written import keyword
from gradguard_lint.rules.base import Examples, Report

CODE = "GG205"


def check(program: Program) -> Iterator[Report]:
    told = program.library_uses("fit in several jobs", "fit in one job")
    for index, effect in enumerate(told):
        if _in_one_job(effect) or any(_serial(it, effect) for it in told[index:]):
            continue
        made = effect.payload.place
        trace = () if made is None else (Step(made, "the estimator is given the GPU here"),)
        yield Report(
            effect.site,
            f"`{effect.what}` runs several jobs at once, and each trains its estimator on the "
            "same GPU.",
            trace,
            fix=_one_job(effect.site),
        )


def _in_one_job(search: Effect[LibraryUse]) -> bool:
    return search.payload.use == "fit in one job"


def _serial(later: Effect[LibraryUse], search: Effect[LibraryUse]) -> bool:
    """Whether `later`, before it begins, the `search` is told to run one job at a time."""
    same = later.payload.ident == search.payload.ident
    return _in_one_job(later) and same and later.when <= search.when


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
    "an estimator of one's own, in others": """\
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import BaggingClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler


class Net(ClassifierMixin, BaseEstimator):
    def __init__(self, device="cuda"):
        self.device = device

    def fit(self, x, y):
        self.net_ = torch.nn.Linear(3, 2).to(self.device)
        return self


net, grid, both = Net(), {}, [StandardScaler(), Net()]
search = GridSearchCV(make_pipeline(StandardScaler(), net), grid, n_jobs=-1)  # GG205
search = GridSearchCV(TransformedTargetRegressor(Net()), grid, n_jobs=-1)  # GG205
search = GridSearchCV(BaggingClassifier(net), grid, n_jobs=-1)  # GG205
search = GridSearchCV(CalibratedClassifierCV(estimator=net), grid, n_jobs=-1)  # GG205
search = GridSearchCV(OneVsRestClassifier(make_pipeline(*both)), grid, n_jobs=-1)  # GG205
search = GridSearchCV(ColumnTransformer([("net", net, [0])]), grid, n_jobs=-1)  # GG205
search = GridSearchCV(FeatureUnion([("net", net)]), grid, n_jobs=-1)  # GG205
bagging = BaggingClassifier(net, n_jobs=4)  # GG205
on_cpu = GridSearchCV(make_pipeline(StandardScaler(), Net("cpu")), grid, n_jobs=-1)
alone = GridSearchCV(BaggingClassifier(net), grid, n_jobs=1)
moved = make_pipeline(StandardScaler(), Net())
moved.set_params(net__device="cpu")
search = GridSearchCV(moved, grid, n_jobs=-1)


def score(x, y):
    model = Pipeline([("scale", StandardScaler()), ("net", Net())])
    return cross_val_score(model, x, y, n_jobs=2)  # GG205
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
    "an estimator of one's own, in others": BAD["an estimator of one's own, in others"]
    .replace("n_jobs=-1)  # GG205", "n_jobs=1)  # GG205")
    .replace("n_jobs=2)  # GG205", "n_jobs=1)  # GG205")
    .replace("n_jobs=4)  # GG205", "n_jobs=1)  # GG205"),
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
