"""This library with its default recipe: no setting but the model and the prior of the noise."""

import nghvi
from benchmarks.deep.task import HIDDEN, LEVEL, Prediction, Task
from nghvi.priors import InverseGamma, Priors


def fit(task: Task, seed: int) -> nghvi.MixedRegressor:
    priors = Priors(noise=InverseGamma())
    estimator = nghvi.MixedRegressor("g", hidden=HIDDEN, priors=priors, random_state=seed)
    return estimator.fit(task.train.frame(), task.train.y)


def predict(task: Task, fitted: nghvi.MixedRegressor) -> Prediction:
    frame = task.test.frame()
    lower, upper = fitted.predict_interval(frame, level=LEVEL)
    facts = {
        "converged": bool(fitted.converged_),
        "verdict": str(fitted.verdict_),
        "elbo": float(fitted.elbo_),
        "k_hat": float(fitted.k_hat_),
    }
    log_score = fitted.log_score(frame, task.test.y)
    return Prediction(fitted.predict(frame), log_score, lower, upper, facts=facts)
