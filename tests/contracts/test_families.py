"""``family=``: contracts of every registered family, and one from outside the library."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.scipy.special import log_ndtr
from scipy import stats
from scipy.integrate import quad

import nghvi
from nghvi._core.variational import Variational
from nghvi.data import Rows
from nghvi.families import FAMILIES, Factor, Family
from nghvi.inference import infer
from nghvi.models.mixed import MixedModel
from nghvi.models.smallest_form import prepare
from nghvi.networks import Identity, Perceptron
from nghvi.priors import Priors
from nghvi.recipes.verdict import Cause, Status
from nghvi.responses import Gaussian
from tests.conftest import panel_frame
from tests.core.test_fit import DATA, NormalMean
from tests.registry import cholesky_gaussian

names = pytest.mark.parametrize("name", FAMILIES)
CENTRE, SCALE = jnp.array([0.4, -1.0, 3.0]), jnp.array([0.5, 1.0, 2.0])


class Logistic(Variational):
    """A product of logistic distributions that defines only what is abstract in ``Variational``."""

    mean: jax.Array
    log_scale: jax.Array

    @property
    def dim(self):
        return self.mean.size

    @property
    def noise_dim(self):
        return self.mean.size

    @property
    def centre(self):
        return self.mean

    def transport(self, noise):
        return self.mean + jnp.exp(self.log_scale) * (log_ndtr(noise) - log_ndtr(-noise))

    def log_density(self, theta):
        white = (theta - self.mean) / jnp.exp(self.log_scale)
        return jnp.sum(-white - 2 * jnp.logaddexp(0.0, -white) - self.log_scale)

    def retract(self, update):
        return jax.tree.map(jnp.add, self, update)

    def rescale(self, tangent, unit):
        return type(self)(unit * tangent.mean, tangent.log_scale)

    def standard_deviation(self):
        return jnp.pi / jnp.sqrt(3.0) * jnp.exp(self.log_scale)

    def covariance(self):
        return jnp.diag(self.standard_deviation() ** 2)


class Logistics(Family):
    member = Logistic

    def at(self, centre, scale):
        return Logistic(centre, jnp.log(scale * jnp.sqrt(3.0) / jnp.pi))


# contracts of every family


@names
def test_density_in_one_dimension_integrates_to_one_with_the_mean_and_sd_it_says(name):
    q = FAMILIES[name].at(CENTRE[:1], SCALE[:1])
    density = jax.jit(lambda x: jnp.exp(q.log_density(x[None])))

    def moment(power):
        return quad(lambda x: x**power * float(density(x)), -np.inf, np.inf, epsabs=1e-10)[0]

    mean, sd = float(q.centre[0]), float(q.standard_deviation()[0])
    np.testing.assert_allclose([moment(0), moment(1)], [1.0, mean], atol=1e-6)
    np.testing.assert_allclose(moment(2), mean**2 + sd**2, rtol=1e-5)


@names
def test_it_begins_where_it_is_told_to(name):
    q = FAMILIES[name].at(CENTRE, SCALE)
    assert isinstance(q, FAMILIES[name].member)
    np.testing.assert_allclose(q.centre, CENTRE)
    np.testing.assert_allclose(q.standard_deviation(), SCALE, rtol=1e-3)
    assert np.isfinite(q.transport(jnp.zeros(q.noise_dim))).all()


@names
def test_draws_have_the_density_and_the_moments_of_the_member(name):
    q = FAMILIES[name].near(cholesky_gaussian(3))
    noise = jax.random.normal(jax.random.key(1), (20_000, q.noise_dim))
    theta = np.asarray(jax.jit(jax.vmap(q.transport))(noise))
    sd = np.asarray(q.standard_deviation())
    np.testing.assert_allclose(theta.mean(0), q.centre, atol=0.03 * sd.max())
    np.testing.assert_allclose(theta.std(0), sd, rtol=0.05)
    correlation = np.asarray(q.covariance()) / np.outer(sd, sd)
    np.testing.assert_allclose(np.corrcoef(theta.T), correlation, atol=0.04)
    # The mean of p / q over draws of q is 1 for any density p with lighter tails.
    p = stats.multivariate_normal(q.centre, 0.5 * np.asarray(q.covariance()))
    log_q = np.asarray(jax.jit(jax.vmap(q.log_density))(theta))
    assert np.mean(np.exp(p.logpdf(theta) - log_q)) == pytest.approx(1.0, abs=0.05)


@names
def test_pull_back_is_the_gradient_by_autodiff(name):
    q = FAMILIES[name].near(cholesky_gaussian(3))
    noise = jax.random.normal(jax.random.key(2), (400, q.noise_dim))
    if FAMILIES[name].gaussian:  # one of them averages both halves of a symmetric expectation
        noise = jnp.sqrt(q.noise_dim) * jnp.linalg.qr(noise[: q.noise_dim])[0]
        noise = jnp.concatenate([noise, -noise])
    score = -0.3 * jax.vmap(q.transport)(noise)

    def mean_product(q):
        return jnp.mean(jnp.sum(score * jax.vmap(q.transport)(noise), axis=1))

    np.testing.assert_allclose(
        ravel_pytree(q.pull_back(noise, score))[0],
        ravel_pytree(jax.grad(mean_product)(q))[0],
        rtol=1e-9,
        atol=1e-9,
    )


@names
def test_no_step_leads_nowhere_and_a_small_one_goes_along_its_tangent(name):
    q = FAMILIES[name].near(cholesky_gaussian(3))
    vector, unravel = ravel_pytree(q)
    tangent = jnp.asarray(np.random.default_rng(0).normal(size=vector.size))
    np.testing.assert_allclose(
        q.retract(unravel(0 * tangent)).covariance(), q.covariance(), rtol=1e-9, atol=1e-9
    )

    def moments(q):
        return jnp.column_stack([q.covariance(), q.centre])

    _, slope = jax.jvp(lambda x: moments(unravel(x)), (vector,), (tangent,))
    ends = [moments(q.retract(unravel(t * tangent))) for t in (1e-5, -1e-5)]
    np.testing.assert_allclose((ends[0] - ends[1]) / 2e-5, slope, rtol=1e-4, atol=1e-4)


# from outside


def test_a_family_of_ones_own_fits_a_smooth_model():
    found = infer(NormalMean(), DATA, family=Logistics(), steps=400)
    assert found.verdict.status is Status.SETTLED
    assert found.verdict.cause is Cause.OWN_FAMILY
    assert isinstance(found.q, Logistic)
    # The posterior is independent normal; KL(logistic || normal) is least where variances agree.
    best = infer(NormalMean(), DATA)
    np.testing.assert_allclose(found.q.centre, best.q.centre, atol=0.05)
    ratio = found.q.standard_deviation() / best.q.standard_deviation()
    np.testing.assert_allclose(ratio, 1.0, rtol=0.03)
    assert best.elbo - 0.2 < found.elbo < best.elbo
    assert not found.pool.corrected
    assert found.k_hat < 0.7
    assert found.draws(50, seed=1).shape == (50, 4)


def test_a_family_of_ones_own_fits_drawn_latents_and_networks():
    frame = panel_frame(num_groups=8, size=6)
    x = np.column_stack([np.ones(len(frame)), frame[["a"]]])
    rows = Rows.from_arrays(x, frame["y"].to_numpy(), frame["g"].to_numpy(), 8)
    linear = MixedModel(Identity(2), Gaussian(), Priors(), (0,))
    drawn = infer(linear, rows, latents="sample", family=Logistics(), steps=400)
    exact = infer(linear, prepare(linear, rows), family=Logistics(), steps=400)
    sd = exact.q.standard_deviation()
    np.testing.assert_array_less(np.abs(drawn.q.centre - exact.q.centre) / sd, 0.25)
    network = MixedModel(Perceptron(2, (2,)), Gaussian(), Priors(), (0,))
    deep = infer(network, rows, family=Logistics(), steps=60, n_starts=1)
    assert isinstance(deep.q, Logistic)
    assert np.isfinite(deep.elbo)


class Measured(Logistic):
    """The same, but it tells its remaining errors, in the metric of its own variances."""

    def remaining_error(self, gradient):
        sd = self.standard_deviation()
        return nghvi._core.variational.RemainingError(sd * gradient.mean, gradient.log_scale / 2)


class MeasuredFamily(Logistics):
    def at(self, centre, scale):
        begun = super().at(centre, scale)
        return Measured(begun.mean, begun.log_scale)


def test_a_family_that_tells_its_errors_is_called_converged():
    found = infer(NormalMean(), DATA, family=MeasuredFamily())
    assert found.verdict.status is Status.CONVERGED


def test_iterates_are_averaged_as_the_family_says():
    class InLogs(Logistic):
        def averaged(self, total, count):
            return InLogs(total.mean / count, jnp.full_like(total.log_scale, -7.0))

    class Averaged(Logistics):
        def at(self, centre, scale):
            begun = super().at(centre, scale)
            return InLogs(begun.mean, begun.log_scale)

    found = infer(NormalMean(), DATA, family=Averaged(), steps=200)
    np.testing.assert_array_equal(found.q.log_scale, -7.0)


def test_what_a_family_cannot_do_is_said():
    with pytest.raises(nghvi.InputError, match="published rules move"):
        infer(NormalMean(), DATA, method="ng-hvi", family=Logistics())
    with pytest.raises(nghvi.InputError, match=r"nghvi\.families\.Family"):
        infer(NormalMean(), DATA, family="binomial")
    with pytest.raises(nghvi.InputError, match="has no natural gradient"):
        Logistics().at(CENTRE, SCALE).natural_gradient(None, 0.0, "exact", None)
    with pytest.raises(nghvi.InputError, match="rank=-1"):
        Factor(-1)
