"""Other methods behind the same estimators: one argument apart."""

import numpy as np
import pytest

import nghvi
from nghvi.inference import METHODS
from nghvi.paper.methods import BASELINES

COLUMNS = ["g", "a", "b"]


@pytest.mark.parametrize("method", ["davi", "davi-published"])
def test_davi_predicts_like_the_default(panel, method):
    ours = nghvi.MixedRegressor("g").fit(panel[COLUMNS], panel["y"])
    theirs = nghvi.MixedRegressor("g", method=method, steps=3000).fit(panel[COLUMNS], panel["y"])
    assert theirs.elbo_ <= ours.log_evidence_ + 4 * theirs.elbo_se_
    left, right = ours.predict(panel[COLUMNS]), theirs.predict(panel[COLUMNS])
    assert np.sqrt(np.mean((left - right) ** 2)) < 0.1 * panel["y"].std()
    assert np.isfinite(theirs.summary().to_numpy()).all()
    assert len(theirs.trace_) == theirs.n_iter_ == 3000


def test_nagvac_stops_by_held_out_rows(panel):
    y = (panel["y"] > panel["y"].median()).to_numpy()
    train = np.arange(len(panel)) % 8 < 6
    settings = {"response": "logit", "covariance": "diagonal", "method": "nagvac"}
    held_out = panel.loc[~train, ["b", "g", "a"]], y[~train]  # columns go by name
    fitted = nghvi.MixedClassifier("g", **settings, steps=60).fit(
        panel.loc[train, COLUMNS], y[train], validation=held_out
    )
    assert fitted.n_iter_ <= 60
    assert nghvi.scores.pce(y, fitted.predict_proba(panel[COLUMNS])[:, 1]) < np.log(2)
    strangers = held_out[0].assign(g=-1), held_out[1]
    with pytest.raises(nghvi.DataError, match="no rows of the groups"):
        nghvi.MixedClassifier("g", **settings).fit(panel[COLUMNS], y, validation=strangers)
    with pytest.raises(nghvi.DataError, match=r"makes no use of validation.*'nagvac'"):
        nghvi.MixedClassifier("g").fit(panel[COLUMNS], y, validation=held_out)


def test_least_squares_is_a_point(panel):
    inputs = panel[["a", "b"]]
    fitted = nghvi.MixedRegressor(hidden=(3,), method="least-squares").fit(inputs, panel["y"])
    assert fitted.status_ in ("settled", "not_settled")
    lower, upper = fitted.predict_interval(inputs, level=0.9)
    assert nghvi.scores.coverage(panel["y"].to_numpy(), lower, upper) > 0.8
    draws = fitted.posterior_draws(5)
    np.testing.assert_array_equal(draws["noise_var"], np.full(5, draws["noise_var"][0]))


def test_methods_that_do_not_fit_the_model_say_so(panel):
    with pytest.raises(ValueError, match="group=None"):
        nghvi.MixedRegressor("g", method="least-squares").fit(panel[COLUMNS], panel["y"])
    with pytest.raises(ValueError, match="Gaussian"):
        nghvi.MixedClassifier("g", method="davi").fit(panel[COLUMNS], panel["y"] > 0)
    with pytest.raises(nghvi.DataError, match="choose one of") as raised:
        nghvi.MixedRegressor("g", method="davvi").fit(panel[COLUMNS], panel["y"])
    assert all(repr(name) in str(raised.value) for name in (*METHODS, *BASELINES))
