"""skorch under scikit-learn's searches: networks that train in workers, all of it legitimate."""

import numpy as np
import torch
from sklearn.ensemble import BaggingClassifier
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(40, 3)).astype(np.float32)
LABELS = (ROWS.sum(axis=1) > 0).astype(np.int64)


class Network(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, rows):
        return torch.softmax(self.layers(rows), dim=-1)


def net(module, **options):
    options = {"max_epochs": 2, "verbose": 0, "train_split": None, **options}
    return NeuralNetClassifier(module, **options)


def test_search_over_a_module_class():
    search = GridSearchCV(net(Network), {"module__width": [2, 4]}, cv=2, n_jobs=2)
    assert search.fit(ROWS, LABELS).best_estimator_.initialized_


def test_search_over_a_module_instance():
    search = GridSearchCV(net(Network()), {"lr": [0.01, 0.1]}, cv=2, n_jobs=2)
    assert search.fit(ROWS, LABELS).predict(ROWS).shape == (40,)


def test_search_over_an_initialized_net():
    started = net(Network).fit(ROWS, LABELS)
    search = GridSearchCV(started, {"lr": [0.01, 0.1]}, cv=2, n_jobs=2, refit=False)
    search.fit(ROWS, LABELS)


def test_pipeline():
    pipeline = make_pipeline(StandardScaler(), net(Network))
    out = cross_validate(pipeline, ROWS, LABELS, cv=2, n_jobs=2, return_estimator=True)
    assert len(out["estimator"]) == 2


def test_cross_validate_returns_nets():
    out = cross_validate(net(Network), ROWS, LABELS, cv=2, n_jobs=2, return_estimator=True)
    for fitted in out["estimator"]:
        fitted.partial_fit(ROWS, LABELS)


def test_cross_val_predict():
    assert cross_val_predict(net(Network), ROWS, LABELS, cv=2, n_jobs=2).shape == (40,)


def test_bagging():
    bagging = BaggingClassifier(net(Network), n_estimators=2, n_jobs=2, random_state=0)
    assert bagging.fit(ROWS, LABELS).predict(ROWS).shape == (40,)


def test_criterion_with_a_weight():
    weight = torch.tensor([1.0, 2.0])
    model = net(Network, criterion=nn.CrossEntropyLoss, criterion__weight=weight)
    cross_validate(model, ROWS, LABELS, cv=2, n_jobs=2)


def test_criterion_with_a_weight_that_requires_grad():
    weight = torch.ones(1, requires_grad=True)
    model = NeuralNetRegressor(
        nn.Linear(3, 1), criterion=Weighted, criterion__weight=weight, max_epochs=1, verbose=0
    )
    targets = ROWS.sum(axis=1, keepdims=True)
    cross_validate(model, ROWS, targets, cv=2, n_jobs=2)  # -> GG101


class Weighted(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, prediction, target):
        return (self.weight * (prediction - target) ** 2).mean()
