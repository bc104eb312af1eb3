"""GG205: a scikit-learn search runs a GPU estimator in several processes."""

from pytest_gradguard.pitfalls import Pitfall, Severity, links

PITFALL = Pitfall(
    code="GG205",
    name="gpu-estimator-n-jobs",
    title="A parallel search over an estimator that uses the GPU",
    severity=Severity.WARNING,
    happens=(
        "Each of the `n_jobs` processes initialises CUDA, keeps its own model and data on the "
        "same GPU, and waits for the others there. It can run out of GPU memory where "
        "`n_jobs=1` would not."
    ),
    why=(
        "scikit-learn passes the fits to joblib, whose default workers are processes, and an "
        'estimator with `device="cuda"` moves to the GPU in each of them.'
    ),
    fix=(
        "Leave `n_jobs` at 1 (or `None`) when the estimator trains on the GPU. The GPU already "
        "computes in parallel."
    ),
    bad="""\
import numpy as np
import torch
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier

network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softmax(dim=-1))
classifier = NeuralNetClassifier(network, device="cuda", train_split=None, verbose=0)
search = GridSearchCV(classifier, {"lr": [0.01, 0.1]}, cv=2, n_jobs=2)
inputs = np.random.default_rng(0).normal(size=(20, 2)).astype("float32")
search.fit(inputs, (inputs[:, 0] > 0).astype("int64"))
print(sorted(search.best_params_))
""",
    good="""\
import numpy as np
import torch
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier

network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softmax(dim=-1))
device = "cuda" if torch.cuda.is_available() else "cpu"
classifier = NeuralNetClassifier(network, device=device, train_split=None, verbose=0)
search = GridSearchCV(classifier, {"lr": [0.01, 0.1]}, cv=2)
inputs = np.random.default_rng(0).normal(size=(20, 2)).astype("float32")
search.fit(inputs, (inputs[:, 0] > 0).astype("int64"))
print(sorted(search.best_params_))  # prints: ['lr']
""",
    lint=(
        "On `GridSearchCV` and the other scikit-learn entry points with `n_jobs` other than 1"
        " and `None` over an estimator that is on a GPU."
    ),
    runtime=None,
    silence="If the GPU has room for as many candidates at once as there are workers.",
    links=(links.SKLEARN_PARALLEL, links.TORCH_CUDA),
)
