"""scikit-learn, and libraries with its estimators: boosted trees, cuML."""

from __future__ import annotations

from gradguard_lint.models.rows import Library, Row, under

_SEARCHES = (
    "GridSearchCV RandomizedSearchCV HalvingGridSearchCV HalvingRandomSearchCV "
    "cross_val_score cross_validate cross_val_predict learning_curve validation_curve "
    "permutation_test_score permutation_importance BaggingClassifier BaggingRegressor "
    "VotingClassifier VotingRegressor StackingClassifier StackingRegressor "
    "OneVsRestClassifier OneVsOneClassifier RFECV MultiOutputClassifier MultiOutputRegressor "
    "SequentialFeatureSelector BayesSearchCV OutputCodeClassifier CalibratedClassifierCV "
    "TunedThresholdClassifierCV"
)
_HOMES = (
    "sklearn.model_selection sklearn.ensemble sklearn.multiclass sklearn.feature_selection "
    "sklearn.multioutput sklearn.calibration sklearn.inspection skopt imblearn.ensemble "
    "tune_sklearn"
)

LIBRARY = Library(
    tops=("sklearn", "skopt", "imblearn", "xgboost", "lightgbm", "catboost", "cuml"),
    marks=("n_jobs",),
    rows=(
        Row(
            " ".join(f"{home}.{name}" for home in _HOMES.split() for name in _SEARCHES.split()),
            "search",
            argument=(0, "estimator"),
        ),
        Row("sklearn.base.clone", "copied"),
        Row(
            under(
                "sklearn.metrics",
                "accuracy_score average_precision_score balanced_accuracy_score cohen_kappa_score "
                "explained_variance_score f1_score fbeta_score jaccard_score log_loss "
                "matthews_corrcoef mean_absolute_error mean_squared_error precision_score r2_score "
                "recall_score roc_auc_score",
            ),
            "number",
            flag="anew",
        ),
        Row(
            "sklearn.utils.check_random_state sklearn.utils.validation.check_random_state",
            "generator",
            flag="numpy.random.RandomState",
        ),
        Row("sklearn.pipeline.* sklearn.compose.* imblearn.pipeline.*", "pipeline"),
        Row(
            "sklearn.ensemble.AdaBoostClassifier sklearn.ensemble.AdaBoostRegressor "
            "sklearn.feature_selection.RFE sklearn.feature_selection.SelectFromModel "
            "sklearn.model_selection.FixedThresholdClassifier sklearn.multioutput.ClassifierChain "
            "sklearn.multioutput.RegressorChain sklearn.semi_supervised.SelfTrainingClassifier",
            "pipeline",
        ),
        Row("xgboost.* lightgbm.* catboost.*", "estimator", only="class"),
        Row("cuml.*", "estimator", only="class", gpu=True),
    ),
    bases={
        "xgboost.*": "estimator",
        "lightgbm.*": "estimator",
        "catboost.*": "estimator",
        "cuml.*": "gpu-estimator",
    },
)
