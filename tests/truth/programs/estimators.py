"""scikit-learn's searches over torch estimators: what the parent pickles."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from cases import case, main
from joblib import Parallel as JoblibParallel
from joblib import delayed as joblib_delayed
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.utils.parallel import Parallel, delayed
from skorch import NeuralNetClassifier

pickled = []


class CountedParameter(torch.nn.Parameter):
    """A parameter that counts, in the parent, how often it is pickled."""

    def __reduce_ex__(self, protocol):
        pickled.append(self.requires_grad)
        return super().__reduce_ex__(protocol)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        for name, parameter in list(self.layer.named_parameters()):
            setattr(self.layer, name, CountedParameter(parameter.detach()))

    def forward(self, x):
        return torch.softmax(self.layer(x), dim=-1)


def data():
    inputs = np.random.default_rng(0).normal(size=(40, 2)).astype("float32")
    return inputs, (inputs[:, 0] > 0).astype("int64")


def search(module):
    pickled.clear()
    net = NeuralNetClassifier(module, max_epochs=1, verbose=0, train_split=None)
    grid = GridSearchCV(net, {"lr": [0.01, 0.1]}, cv=2, n_jobs=2, refit=False)
    grid.fit(*data())
    return {"pickled": len(pickled), "all require grad": all(pickled)}


@case
def skorch_with_a_class():
    return search(Network)


@case
def skorch_with_an_instance():
    return search(Network())


class Keeper(RegressorMixin, BaseEstimator):
    """Keeps its last loss, with its graph."""

    def fit(self, X, y):
        self.weight_ = torch.zeros(X.shape[1], requires_grad=True)
        target = torch.as_tensor(y, dtype=torch.float32)
        self.loss_ = (torch.as_tensor(X) @ self.weight_ - target).square().mean()
        self.loss_.backward()
        return self

    def predict(self, X):
        return (torch.as_tensor(X) @ self.weight_).detach().numpy()


@case
def estimator_that_keeps_its_loss():
    found = {}
    for jobs in (1, 2):
        results = cross_validate(Keeper(), *data(), cv=2, n_jobs=jobs, return_estimator=True)
        found[str(jobs)] = [e.loss_.grad_fn is not None for e in results["estimator"]]
        found[str(jobs)] += [e.loss_.requires_grad for e in results["estimator"]]
    return found


def scale(tensor, factor):
    return tensor * factor


@case
def scikit_learn_wraps_joblib():
    x = torch.ones(2, requires_grad=True)
    out = Parallel(2)(delayed(scale)(x * 1, k) for k in (1.0, 2.0))
    return [
        issubclass(Parallel, JoblibParallel) and delayed is not joblib_delayed,
        [result.is_leaf for result in out],
    ]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
