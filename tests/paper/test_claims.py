"""Claims: the numbers of each against independent computations or loose bounds.

Seeds are fixed; bounds of averages over draws are at least four standard deviations wide, so a new
seed fails them with probability below 1e-3 in all.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from nghvi.paper.methods.davi import local_kl
from nghvi.paper.methods.snngm import Block
from nghvi.paper.studies import claims, printed_values, problems
from nghvi.paper.studies.claims import elbo
from nghvi.paper.studies.study import Options
from nghvi.priors import InverseGamma


@pytest.fixture(scope="module")
def rows():
    return {
        cell["claim"]: {**cell, **claims.run(cell, Options())} for cell in claims.cells(Options())
    }


def test_every_claim_has_a_sentence_with_finite_numbers(rows, tmp_path):
    assert set(rows) == set(claims.CLAIMS)
    for row in rows.values():
        assert row["where"]
        assert row["said"]
        assert "nan" not in row["found"]
        assert "{" not in row["found"]
        numbers = [v for v in row.values() if not isinstance(v, str)]
        assert np.isfinite(numbers).all()
    claims.STUDY.report(list(rows.values()), tmp_path)
    table = (tmp_path / "claims.csv").read_text()
    assert all(name in table for name in rows)
    assert r"C\~{} must be a root of (I + B'D\^{}-2 B)" in (tmp_path / "claims.tex").read_text()
    assert "H_k beta" in (tmp_path / "claims_others.txt").read_text()


def test_the_shortcut_of_the_noisy_elbo_overstates_by_the_divergence(rows):
    """KL = E[log p(y | z)] - log p(y), from dense Gaussians group by group."""
    row = rows["noisy ELBO"]
    part = problems.example2a(1, elbo.GROUPS).train
    h = part.inputs.drop(columns=problems.GROUP).to_numpy()
    for w in problems.WEIGHTS_2A:
        h = np.maximum(h @ w[:, 1:].T + w[:, 0], 0)
    h = np.column_stack([np.ones(len(h)), h]).reshape(elbo.GROUPS, 6, 6)
    residual = part.y.reshape(elbo.GROUPS, 6) - h @ problems.COEF_2A
    total = 0.0
    for features, e in zip(h, residual, strict=True):
        cov = np.linalg.inv(np.diag(problems.PRECISION_2A) + features.T @ features / 20)
        left = e - features @ cov @ features.T @ e / 20
        square = left @ left + np.trace(features @ cov @ features.T)
        total += -3 * np.log(2 * np.pi * 20) - square / 40
        marginal = features / problems.PRECISION_2A @ features.T + 20 * np.eye(6)
        total -= stats.multivariate_normal(np.zeros(6), marginal).logpdf(e)
    assert row["kl"] == pytest.approx(total, rel=1e-9)
    assert row["excess"] == pytest.approx(total, abs=5 * row["excess_se"])
    assert total > 100 > 20 * row["excess_se"]
    assert max(row["spread"], row["gap"]) < 1e-9
    assert rows["better than DAVI by its family"]["spread"] < 1e-9


def test_elbos_of_the_examples_are_off_by_what_theory_says(rows):
    row = rows["ELBO of Example 1"]
    for name, ratio in (("small", 0.01), ("one", 1.0), ("large", 10.0)):
        # m = 8; with 100 groups the prior pulls the smallest variance up to about 0.05.
        theory = 4 - np.log(max(ratio, 0.05))
        assert row[f"expected_{name}"] == pytest.approx(theory, abs=0.5)
        assert row[f"excess_{name}"] == pytest.approx(row[f"expected_{name}"], abs=0.4)
        assert row[f"excess_{name}"] == pytest.approx(printed_values.TABLE_1[100, ratio][-1], abs=1)
    row = rows["ELBO of Example 2"]
    assert row["example2a"] == pytest.approx(2500 * np.log(2 * np.pi))
    assert row["example2b"] == pytest.approx(8000 * np.log(2 * np.pi))
    row = rows["Wishart density"]
    assert row["deficit"] == pytest.approx(12.66, abs=0.01)
    assert row["ours"] < 1e-10


def test_printed_matrices_and_solvers_are_off_and_the_librarys_are_not(rows):
    row = rows["inverse of F11"]
    assert 0.1 < row["usual"] < row["little"] < 1 + 1e-9
    assert row["ours"] < 1e-10
    row = rows["F22"]
    assert 0.3 < row["printed"] < 1.5
    assert row["ours"] < 1e-10
    assert row["least_excess"] > -1e-10
    row = rows["F33"]
    assert 0.001 < row["program"] < row["asymmetry"] < 1
    row = rows["solver"]
    assert row["plain_iterations"] == 20
    assert row["plain_error"] > 0.5
    assert row["jacobi_iterations"] < 20
    assert row["jacobi_error"] < 1e-4


def test_other_methods_programs(rows):
    row = rows["NAGVAC's inverse"]
    assert row["median_error"] > 0.3
    assert 0.02 < row["not_ascent"] / row["states"] < 0.3
    row = rows["DAVI's local blocks"]
    assert 0.2 < row["median_error"] < 2
    assert row["ours"] < 1e-12
    start = Block(jnp.zeros((6, 1)), 0.1 * jnp.eye(6)[:, :, None])
    assert rows["DAVI's start"]["total"] == pytest.approx(1000 * float(local_kl(start)[0]))
    row = rows["Sobol draws"]
    assert -0.8 < row["correlation"] < -0.5
    assert row["variance"] < 0.3
    assert row["ours"] == pytest.approx(1, abs=0.2)


def test_draws_and_priors_of_example_3(rows):
    row = rows["predictive effects"]
    # alpha | y* shrinks by 14 / 15 per sweep, and truncation by some third more.
    assert 0.1 < row["left_text_2"] < (14 / 15) ** 2 * 0.6
    assert row["left_code_2"] < 0.05
    assert abs(row["left_text_30"]) < 0.05
    assert row["bias_text_2"] > 3 * row["bias_text_30"]
    row = rows["prior of the variances"]
    slope = jax.grad(lambda t: InverseGamma(0.1, 0.1).log_density(t))(np.log(0.01))
    assert row["text"] == pytest.approx(float(slope), rel=1e-6)
    assert row["program"] == pytest.approx(0.1 - 0.1 * 0.01, rel=1e-6)


def test_sizes_times_and_averages(rows):
    row = rows["dim(lambda)"]
    assert (row["example2a_printed"] - row["example2a"]) == 3  # p (p - 1) / 2
    assert (row["example2b_printed"] - row["example2b"]) == 3
    row = rows["time of Example 2(b)"]
    assert (row["example2b"], row["example2a"]) == pytest.approx((825, 2.5))
    assert row["seconds"] == pytest.approx(2.664)
    assert rows["last 100 steps"]["values"] == 101
    assert rows["R2"]["excess"] == pytest.approx((1 - 0.6334) / 2000)
    row = rows["gradient of the likelihood"]
    assert abs(row["cosine"]) < 0.6
    assert row["corrected"] < 1e-12
