"""How fits end: the values, the sentences over all of them, and the rule behind "converged"."""

import importlib
import json
import signal
import zipfile
from collections import defaultdict

import numpy as np
import pytest

import nghvi
from nghvi.estimators.tables import Draws, about_draws, k_hat_meaning
from nghvi.networks import Identity
from nghvi.recipes.importance import Pool
from nghvi.recipes.settling import most_movement
from nghvi.recipes.verdict import (
    OUTCOMES,
    TOLERANCE,
    Bounds,
    Cause,
    Status,
    Verdict,
    judge,
)
from nghvi.report import words

outcomes = pytest.mark.parametrize(("status", "cause"), OUTCOMES, ids=str)
ANY = defaultdict(lambda: 7.0)
"""Whatever a sentence asks for."""


# every end


def test_every_status_and_every_cause_occurs():
    assert {status for status, _ in OUTCOMES} == set(Status)
    assert {cause for _, cause in OUTCOMES} == set(Cause)


@outcomes
def test_every_end_is_explained_and_every_bad_one_has_a_remedy(status, cause):
    verdict = Verdict(status, cause, ANY)
    assert verdict.converged == (status in (Status.CONVERGED, Status.SETTLED))
    assert verdict.sentence.startswith(f"{status.heading}: ")
    assert str(verdict) == verdict.sentence
    assert verdict.explanation.endswith(".")
    assert not verdict.explanation.endswith("..")
    if not verdict.converged:
        assert verdict.remedies
        assert verdict.remedies[0] in verdict.sentence
    for remedy in verdict.remedies:
        assert remedy.endswith(".")
        assert "resume" not in remedy


@outcomes
def test_resuming_is_advised_where_it_is_possible_and_only_there(status, cause):
    assert "resume()" in Verdict(status, cause, ANY, resumable=True).remedies[0]


@outcomes
def test_networks_are_spoken_of_where_there_is_one(status, cause):
    said = Verdict(status, cause, ANY).explanation
    assert ("network" in said) == (cause in (Cause.ONE_OF_MANY_MODES, Cause.CONSTANT_FEATURES))


class Ended:
    """An estimator, as far as the report asks one."""

    def __init__(self, verdict, k_hat=0.1, corrected=False):
        pool = Pool.plain(np.zeros((4, 1)))._replace(corrected=corrected)
        facts = {"verdict": verdict, "pool": pool, "k_hat": k_hat, "log_evidence": 0, "elbo": 0}
        inference = type("", (), facts)()
        model = type("", (), {"trunk": Identity(1)})()
        self.posterior_ = type("", (), {"inference": inference, "model": model})()


@outcomes
def test_the_report_shows_what_the_verdict_says(status, cause):
    verdict = Verdict(status, cause, ANY)
    found = words.judgement(Ended(verdict))
    assert found.kind == ("good" if verdict.converged else "bad")
    assert found.heading == status.heading
    assert verdict.explanation in found.sentence
    assert found.advice == (() if verdict.converged else verdict.remedies)


# draws beside the verdict


def test_a_large_k_hat_beside_a_good_end_is_explained():
    usual = Draws(0.3, 0.5, corrected=False, effective=4000, network=False)
    assert about_draws(usual) == ""
    assert "k-hat" not in about_draws(usual._replace(corrected=True))
    corrected = about_draws(usual._replace(k_hat=0.8, corrected=True))
    assert "k-hat is 0.80" in corrected
    assert "no harm" in corrected
    plain = about_draws(usual._replace(k_hat=0.8))
    assert "k-hat is 0.80" in plain
    assert "not corrected" in plain
    assert "sds" in plain
    assert about_draws(usual._replace(k_hat=0.8, network=True)) == ""


def test_a_tail_that_hardly_counts_is_not_spoken_of():
    far = Draws(1.2, 0.001, corrected=True, effective=4000, network=False)
    assert "k-hat" not in about_draws(far)
    assert "far tails only, 0.001 nats" in k_hat_meaning(far)
    # Draws that are not corrected cannot tell how little they miss.
    assert "misses part" in about_draws(far._replace(corrected=False))
    assert "misses part" in k_hat_meaning(far._replace(corrected=False))


def test_the_report_is_careful_where_the_verdict_is():
    verdict = Verdict(Status.CONVERGED, Cause.OPTIMUM, ANY)
    careful = words.judgement(Ended(verdict, 0.8))
    assert careful.kind == "care"
    assert "not corrected" in careful.sentence
    assert words.judgement(Ended(verdict, 0.8, corrected=True)).kind == "good"


# converged


def errors(mean, noise, number, seed=0):
    """Estimates of five coordinates, the first of which is off by ``mean``."""
    found = noise * np.random.default_rng(seed).normal(size=(number, 5))
    return found + np.array([mean, 0, 0, 0, 0])


def test_converged_is_an_upper_statement():
    """Never "within 0.38 posterior sd" or "sds within 18 %", however large the noise."""
    still = np.zeros((9, 5))
    for mean in (0.0, 0.02, 0.06, 0.38):
        for noise in (0.0, 0.01, 0.1, 1.0, 1e9):
            for pair in ((errors(mean, noise, 9), still), (still, errors(mean, noise, 9))):
                found = judge(*pair, cause=Cause.SHAPE)
                bounds = found.facts["mean_bound"], found.facts["scale_bound"]
                assert found.converged == (max(bounds) <= TOLERANCE)
                assert max(bounds) >= max(found.mean_error, found.scale_error)


def test_the_cause_tells_an_error_from_noise():
    still = np.zeros((27, 5))
    assert judge(errors(0.01, 0.01, 27), still, cause=Cause.SHAPE).converged
    far = judge(errors(0.3, 0.01, 27), still, cause=Cause.SHAPE)
    assert (far.status, far.cause) == (Status.NOT_CONVERGED, Cause.SHAPE)
    assert far.mean_error == pytest.approx(0.3, abs=0.01)
    hidden = judge(errors(0.0, 1.0, 27), still, cause=Cause.SHAPE)
    assert (hidden.status, hidden.cause) == (Status.NOT_CONVERGED, Cause.NOISE)
    assert "too noisy to tell" in hidden.sentence
    lost = judge(np.nan * still, still, cause=Cause.SHAPE)
    assert (lost.status, lost.cause) == (Status.FAILED, Cause.GRADIENT)
    assert judge(still[:1], still[:1], cause=Cause.SHAPE).cause is Cause.NOISE


@pytest.mark.parametrize("number", [3, 9, 27])
def test_what_is_beyond_the_tolerance_is_hardly_ever_called_converged(number):
    """One look errs in 0.2 % of the cases; 20,000 have a standard error of 0.03 %."""
    rng, cases = np.random.default_rng(number), 20_000
    draws = TOLERANCE + 0.002 * rng.normal(size=(number, cases))
    average, error = draws.mean(axis=0), draws.std(axis=0, ddof=1) / np.sqrt(number)
    passed = [
        Bounds.around(a, e, number - 1).upper <= TOLERANCE
        for a, e in zip(average, error, strict=True)
    ]
    assert np.mean(passed) == pytest.approx(0.002, abs=0.0012)


def test_a_settled_elbo_moves_by_a_nat_or_a_small_share_per_parameter():
    assert most_movement(34) == most_movement(300) == 1.0
    assert most_movement(2781) == pytest.approx(6.95, abs=0.01)
    assert most_movement(1500) < 11


# estimators


def test_the_status_is_a_word(fitted, fitted_case):
    assert fitted.status_ == "converged"
    assert type(fitted.status_) is str
    assert fitted.verdict_.startswith("Converged: ")
    deep = fitted_case("deep")[0]
    assert (deep.status_, deep.converged_) == ("not_settled", False)
    assert deep.posterior_.inference.verdict.cause is Cause.STEPS
    with pytest.raises(AttributeError):
        _ = nghvi.MixedRegressor().status_


def test_an_interrupted_run_of_another_method_is_not_told_to_resume(panel, monkeypatch):
    # Not by attribute: the package has the function by this name, and loads the module lazily.
    module = importlib.import_module("nghvi.paper.methods.nagvac")
    advance = module._advance

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)
        return advance(*arguments)

    monkeypatch.setattr(module, "_advance", interrupted)
    part = nghvi.MixedRegressor("g", method="nagvac", covariance="diagonal").fit(
        panel[["g", "a", "b"]], panel["y"]
    )
    assert part.status_ == "interrupted"
    verdict = part.posterior_.inference.verdict
    assert not verdict.resumable
    assert "resume" not in part.verdict_
    assert "Fit again" in verdict.remedies[0]
    assert part.n_iter_ == 10


def test_many_columns_are_no_network(panel):
    """More than 300 columns take the recipe of networks, but have one mode."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 301))
    y = x[:, 0] + rng.normal(size=400)
    model = nghvi.MixedRegressor(steps=300, n_starts=1).fit(x, y)
    assert model.status_ in ("settled", "not_settled")
    assert "network's posterior" not in model.verdict_
    verdict = model.posterior_.inference.verdict
    settled = verdict._replace(status=Status.SETTLED, cause=Cause.FEW_FACTORS)
    assert "factors" in settled.sentence


def test_the_log_evidence_of_a_network_is_not_shown(fitted, panel, fitted_case, tmp_path):
    deep, *_ = fitted_case("deep")
    shown = []
    for number, model in enumerate((fitted, deep)):
        model.report(tmp_path / f"{number}.html")
        shown.append("Log evidence" in (tmp_path / f"{number}.html").read_text())
    assert shown == [True, False]


# files


def saved_by_an_earlier_version(model, path, converged, sentence):
    """A model file from when a verdict was a flag and a sentence."""
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    content = json.loads(members["model.json"])
    old = {
        "class": "Verdict",
        "fields": {
            "converged": converged,
            "sentence": sentence,
            "mean_error": 0.01,
            "scale_error": {"float": "nan"},
        },
    }

    def replaced(value):
        if isinstance(value, list):
            return [replaced(each) for each in value]
        if not isinstance(value, dict):
            return value
        if value.get("class") == "Verdict":
            return old
        return {key: replaced(each) for key, each in value.items()}

    content["model"] = replaced(content["model"])
    return content["model"]


@pytest.mark.parametrize(
    ("converged", "sentence", "status", "resumable"),
    [
        (True, "Converged: means within 0.01 posterior sd.", Status.CONVERGED, False),
        (False, "Not settled as far as can be seen: noise.", Status.NOT_SETTLED, False),
        (False, "Interrupted: stage 'x' stopped; resume to finish.", Status.INTERRUPTED, True),
        (False, "Interrupted: the best iterate.", Status.INTERRUPTED, False),
        (True, "Least squares: gtol is satisfied.", Status.CONVERGED, False),
    ],
)
def test_files_of_earlier_versions_are_read(
    fitted, tmp_path, converged, sentence, status, resumable
):
    from nghvi.storage.file import read, write

    path = tmp_path / "old.nghvi"
    described = saved_by_an_earlier_version(fitted, path, converged, sentence)
    write(path, described, read(path).arrays)
    back = nghvi.load(path)
    assert back.status_ == status.value
    verdict = back.posterior_.inference.verdict
    assert verdict.cause is Cause.EARLIER_VERSION
    assert verdict.resumable == resumable
    assert verdict.mean_error == 0.01
    assert back.verdict_ == fitted.verdict_
    assert "earlier version" in verdict.sentence
    back.save(path)
    assert nghvi.load(path).posterior_.inference.verdict.status is status
