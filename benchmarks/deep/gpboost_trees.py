"""GPBoost: boosted trees and grouped random effects, tuned by its own grid search.

The score is the log likelihood of the last training row of every group, left out for it. First
the trees are tuned with random intercepts, then slopes of all covariates (independent, as it
has no others) are added if they score better: with slopes a round takes seconds, too much for
the whole grid. The response is standardised: its step is a gradient of the log likelihood, which
on this task's raw scale is so short that a thousand rounds do not suffice.
"""

import dataclasses
from typing import NamedTuple

import gpboost
import numpy as np

from benchmarks.deep.task import TRAIN_ROWS, Prediction, Task, gaussian_prediction
from benchmarks.problems import Problem

GRID: dict[str, list] = {
    "learning_rate": [0.1, 0.03],
    "num_leaves": [7, 15, 31, 63],
    "min_data_in_leaf": [20, 60],
}
FIXED = {"max_depth": -1, "verbose": 0}
ROUNDS = 1000
PATIENCE = 20


class Fitted(NamedTuple):
    booster: gpboost.Booster
    slopes: bool
    tuned: dict[str, object]
    y_mean: float
    y_sd: float


def _effects(train: Problem, slopes: bool) -> gpboost.GPModel:
    varying = {}
    if slopes:
        varying = {
            "group_rand_coef_data": train.x,
            "ind_effect_group_rand_coef": [1] * train.x.shape[1],
        }
    return gpboost.GPModel(group_data=train.group, likelihood="gaussian", **varying)


def _tune(train: Problem, slopes: bool, grid: dict[str, list], seed: int) -> dict:
    rows = np.arange(len(train.y))
    last = rows % TRAIN_ROWS == TRAIN_ROWS - 1
    return gpboost.grid_search_tune_parameters(
        param_grid=grid,
        params=FIXED,
        train_set=gpboost.Dataset(train.x, train.y),
        gp_model=_effects(train, slopes),
        folds=[(rows[~last], rows[last])],
        num_boost_round=ROUNDS,
        early_stopping_rounds=PATIENCE,
        metric="test_neg_log_likelihood",
        verbose_eval=0,
        seed=seed,
    )


def fit(task: Task, seed: int) -> Fitted:
    y_mean, y_sd = task.train.y.mean(), task.train.y.std()
    train = dataclasses.replace(task.train, y=(task.train.y - y_mean) / y_sd)
    intercepts = _tune(train, False, GRID, seed)
    trees = {name: value.item() for name, value in intercepts["best_params"].items()}
    with_slopes = _tune(train, True, {name: [value] for name, value in trees.items()}, seed)
    slopes = bool(with_slopes["best_score"] < intercepts["best_score"])
    rounds = int((with_slopes if slopes else intercepts)["best_iter"])
    booster = gpboost.train(
        params={**trees, **FIXED},
        train_set=gpboost.Dataset(train.x, train.y),
        gp_model=_effects(train, slopes),
        num_boost_round=rounds,
    )
    return Fitted(booster, slopes, {**trees, "rounds": rounds}, y_mean, y_sd)


def predict(task: Task, fitted: Fitted) -> Prediction:
    test = task.test
    predicted = fitted.booster.predict(
        data=test.x,
        group_data_pred=test.group,
        group_rand_coef_data_pred=test.x if fitted.slopes else None,
        predict_var=True,
        pred_latent=False,
    )
    mean = fitted.y_mean + fitted.y_sd * np.asarray(predicted["response_mean"], float)
    variance = fitted.y_sd**2 * np.asarray(predicted["response_var"], float)
    facts = {"random slopes": fitted.slopes, **fitted.tuned}
    return gaussian_prediction(test, mean, variance, facts=facts)
