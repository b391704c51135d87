"""The true parameters, and the effects' exact distribution given the training rows."""

from typing import Any

from benchmarks.deep.task import (
    Prediction,
    Task,
    effect_variance,
    effects_given,
    gaussian_prediction,
)


def fit(task: Task, seed: int) -> Any:
    truth, train = task.truth, task.train
    z = truth.features(train.x)
    return effects_given(z, train.y - z @ truth.coef, truth.effects_cov, truth.noise_variance)


def predict(task: Task, fitted: Any) -> Prediction:
    effects, covariances = fitted
    truth, test = task.truth, task.test
    z = truth.features(test.x)
    mean = (z * (truth.coef + effects[test.group])).sum(axis=1)
    variance = truth.noise_variance + effect_variance(z, test.group, covariances)
    return gaussian_prediction(test, mean, variance, remark="true parameters")
