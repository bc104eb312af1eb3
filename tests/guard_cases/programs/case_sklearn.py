"""scikit-learn runs the workers: searches, cross-validation, ensembles.

The user's own line is the one that calls scikit-learn, which calls joblib.
"""

from inspect import signature

import numpy as np
import torch
from joblib import parallel_backend
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.ensemble import BaggingRegressor, RandomForestClassifier, VotingRegressor
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.parallel import Parallel, delayed
from torch import nn

# A fitted estimator that keeps its last loss goes out to the workers again for `predict`: by the
# letter a tensor that requires grad as an attribute, in truth nothing that anyone differentiates.
MAY = {"test_bagging_of_torch_estimators": {"GG101"}, "test_multi_output": {"GG101"}}

DETAILS = {
    "test_search_over_an_estimator_with_a_tensor": {"GG101": {"backend": "loky", "shape": [1, 3]}},
    "test_parallel_of_sklearn": {"GG101": {"object": "args[0]", "shape": [3]}},
}

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(24, 3)).astype(np.float32)
TARGETS = (ROWS @ np.array([1.0, -2.0, 0.5], dtype=np.float32)).astype(np.float32)
LABELS = (TARGETS > 0).astype(int)


class TorchRegressor(RegressorMixin, BaseEstimator):
    """Trains a linear model; keeps its last loss, with all its history."""

    def __init__(self, lr=0.05, steps=3, initial=None, module=None):
        self.lr = lr
        self.steps = steps
        self.initial = initial
        self.module = module

    def fit(self, X, y):
        torch.manual_seed(0)
        rows = torch.as_tensor(np.asarray(X), dtype=torch.float32)
        targets = torch.as_tensor(np.asarray(y), dtype=torch.float32)
        self.model_ = self.module or nn.Linear(rows.shape[1], 1)
        if self.initial is not None:
            with torch.no_grad():
                self.model_.weight.copy_(self.initial)
        optimizer = torch.optim.SGD(self.model_.parameters(), lr=self.lr)
        for _ in range(self.steps):
            optimizer.zero_grad()
            self.loss_ = ((self.model_(rows).squeeze(1) - targets) ** 2).mean()
            self.loss_.backward()
            optimizer.step()
        return self

    def predict(self, X):
        with torch.no_grad():
            rows = torch.as_tensor(np.asarray(X), dtype=torch.float32)
            return self.model_(rows).squeeze(1).numpy()


class TorchClassifier(ClassifierMixin, BaseEstimator):
    def __init__(self, hidden=4):
        self.hidden = hidden

    def fit(self, X, y):
        torch.manual_seed(0)
        self.classes_ = np.unique(y)
        self.model_ = nn.Sequential(
            nn.Linear(X.shape[1], self.hidden), nn.ReLU(), nn.Linear(self.hidden, 2)
        )
        loss = nn.functional.cross_entropy(
            self.model_(torch.as_tensor(X)), torch.as_tensor(y, dtype=torch.long)
        )
        loss.backward()
        self.history_ = [loss]
        return self

    def predict(self, X):
        with torch.no_grad():
            return self.classes_[self.model_(torch.as_tensor(X)).argmax(1).numpy()]


class Weighted(TorchRegressor):
    """Takes a penalty tensor with `fit`."""

    def fit(self, X, y, penalty=None):
        super().fit(X, y)
        if penalty is not None:
            self.penalty_ = float(penalty.detach().sum())
        return self


def leaf():
    return torch.zeros(1, 3, requires_grad=True)


def times(x, k):
    return x * k


def loss_after_fit(k):
    return TorchRegressor(steps=k).fit(ROWS, TARGETS).loss_


# --- tensors that require grad cross -------------------------------------------------------


def test_search_over_an_estimator_with_a_tensor():
    search = GridSearchCV(TorchRegressor(initial=leaf()), {"lr": [0.01, 0.1]}, cv=2, n_jobs=2)
    search.fit(ROWS, TARGETS)  # -> GG101
    assert search.best_params_["lr"] in (0.01, 0.1)


def test_cross_validate_with_a_tensor():
    scores = cross_validate(
        TorchRegressor(initial=leaf()), ROWS, TARGETS, cv=2, n_jobs=2
    )  # -> GG101
    assert len(scores["test_score"]) == 2


def test_pipeline_with_a_tensor():
    model = make_pipeline(StandardScaler(), TorchRegressor(initial=leaf()))
    assert len(cross_val_score(model, ROWS, TARGETS, cv=2, n_jobs=2)) == 2  # -> GG101


def test_closure_in_a_transformer():
    weight = torch.ones(3, requires_grad=True)

    def scale(rows):
        return rows * weight.detach().numpy()

    model = make_pipeline(FunctionTransformer(scale), TorchRegressor())
    assert len(cross_val_score(model, ROWS, TARGETS, cv=2, n_jobs=2)) == 2  # -> GG101


def test_tensor_in_fit_arguments():
    given = "params" if "params" in signature(cross_validate).parameters else "fit_params"  # 1.3
    more = {given: {"penalty": torch.ones(3, requires_grad=True)}}
    scores = cross_validate(Weighted(), ROWS, TARGETS, cv=2, n_jobs=2, **more)  # -> GG101
    assert len(scores["test_score"]) == 2


def test_voting_with_a_tensor():
    model = VotingRegressor(
        [("a", TorchRegressor(initial=leaf())), ("b", TorchRegressor(lr=0.1))], n_jobs=2
    )
    model.fit(ROWS, TARGETS)  # -> GG101
    assert model.predict(ROWS).shape == (24,)


def test_parallel_of_sklearn():
    x = torch.ones(3, requires_grad=True)
    out = Parallel(n_jobs=2)(delayed(times)(x, k) for k in (1, 2))  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_parallel_of_sklearn_by_config():
    x = torch.ones(3, requires_grad=True)
    with parallel_backend("loky"):
        out = Parallel(n_jobs=2)(delayed(times)(x, k=k) for k in (1, 2))  # -> GG101 GG102
    sum(out).sum().backward()  # -> GG103:error
    assert x.grad is None


def test_fitted_results_of_own_parallel():
    out = Parallel(n_jobs=2)(delayed(loss_after_fit)(k) for k in (1, 2))  # -> GG102
    assert all(loss.is_leaf for loss in out)


# --- nothing to report ---------------------------------------------------------------------


def test_parallel_of_sklearn_on_threads():
    x = torch.ones(3, requires_grad=True)
    sum(Parallel(n_jobs=2, prefer="threads")(delayed(times)(x, k) for k in (1, 2))).sum().backward()
    assert x.grad.tolist() == [3.0] * 3


def test_parallel_of_sklearn_in_this_process():
    x = torch.ones(3, requires_grad=True)
    sum(Parallel(n_jobs=1)(delayed(times)(x, k) for k in (1, 2))).sum().backward()
    assert x.grad.tolist() == [3.0] * 3


def test_search_in_this_process():
    search = GridSearchCV(TorchRegressor(initial=leaf()), {"lr": [0.01, 0.1]}, cv=2, n_jobs=1)
    assert search.fit(ROWS, TARGETS).best_estimator_.loss_.grad_fn is not None


def test_search_on_threads():
    search = GridSearchCV(TorchRegressor(initial=leaf()), {"lr": [0.01, 0.1]}, cv=2, n_jobs=2)
    with parallel_backend("threading"):
        search.fit(ROWS, TARGETS)
    assert search.best_params_["lr"] in (0.01, 0.1)


def test_search_over_a_module():
    search = GridSearchCV(
        TorchRegressor(module=nn.Linear(3, 1)), {"lr": [0.01, 0.1]}, cv=2, n_jobs=2
    )
    assert search.fit(ROWS, TARGETS).predict(ROWS).shape == (24,)


def test_search_over_hidden_sizes():
    search = GridSearchCV(TorchClassifier(), {"hidden": [2, 4]}, cv=2, n_jobs=2)
    assert search.fit(ROWS, LABELS).best_params_["hidden"] in (2, 4)


def test_estimators_with_last_loss_come_back():
    scores = cross_validate(TorchRegressor(), ROWS, TARGETS, cv=2, n_jobs=2, return_estimator=True)
    assert all(one.loss_.is_leaf and one.loss_.requires_grad for one in scores["estimator"])


def test_bagging_of_torch_estimators():
    model = BaggingRegressor(TorchRegressor(), n_estimators=4, n_jobs=2).fit(ROWS, TARGETS)
    assert model.predict(ROWS).shape == (24,)  # -> GG101?


def test_voting_of_torch_estimators():
    model = VotingRegressor([("a", TorchRegressor()), ("b", TorchRegressor(lr=0.1))], n_jobs=2)
    model.fit(ROWS, TARGETS)
    assert model.estimators_[0].loss_.is_leaf


def test_multi_output():
    targets = np.stack([TARGETS, -TARGETS], axis=1)
    model = MultiOutputRegressor(TorchRegressor(), n_jobs=2).fit(ROWS, targets)
    assert model.predict(ROWS).shape == (24, 2)  # -> GG101?


def test_forest():
    model = RandomForestClassifier(n_estimators=4, n_jobs=2, random_state=0).fit(ROWS, LABELS)
    scores = torch.tensor(model.predict_proba(ROWS), requires_grad=True)
    scores.sum().backward()
    assert scores.grad is not None


def test_pipeline_of_torch_estimator():
    model = make_pipeline(StandardScaler(), TorchRegressor())
    search = GridSearchCV(model, {"torchregressor__lr": [0.01, 0.1]}, cv=2, n_jobs=2)
    assert search.fit(ROWS, TARGETS).best_score_ < 1.0


def test_refit_model_is_trained_further():
    scores = cross_validate(TorchRegressor(), ROWS, TARGETS, cv=2, n_jobs=2, return_estimator=True)
    model = scores["estimator"][0].model_
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.as_tensor(ROWS)).pow(2).mean().backward()
    optimizer.step()
    assert not torch.equal(before, model.weight)


def test_detached_initial_weight():
    estimator = TorchRegressor(initial=leaf().detach())
    assert len(cross_val_score(estimator, ROWS, TARGETS, cv=2, n_jobs=2)) == 2


def test_fitted_here_and_used_in_workers():
    fitted = [TorchRegressor(steps=k).fit(ROWS, TARGETS) for k in (1, 2)]
    assert all(one.loss_.grad_fn is not None for one in fitted)
    Parallel(n_jobs=2)(delayed(one.predict)(ROWS) for one in fitted)
    Parallel(n_jobs=2)(delayed(one.fit)(ROWS, TARGETS) for one in fitted)


def value(loss):
    return float(loss)


def test_last_loss_handed_over():
    loss = TorchRegressor().fit(ROWS, TARGETS).loss_
    Parallel(n_jobs=2)(delayed(value)(loss) for _ in range(2))  # -> GG101


def test_last_loss_captured():
    loss = TorchRegressor().fit(ROWS, TARGETS).loss_
    Parallel(n_jobs=2)(delayed(lambda k: k * float(loss))(k) for k in range(2))  # -> GG101
