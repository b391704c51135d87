"""Several factors against the dense normal distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.stats import multivariate_normal

from nghvi._core.errors import DataError
from nghvi._linalg import small
from nghvi.data import elimination
from nghvi.data.factors import CrossedStatistics, FactorRows
from nghvi.latents import schur

NOISE = 0.7


def crossed(rng):
    return np.column_stack([rng.integers(0, 9, 60), rng.integers(0, 5, 60)])


def complete(rng):
    return np.column_stack([each.ravel() for each in np.meshgrid(range(9), range(5))])


def three_crossed(rng):
    return np.column_stack([rng.integers(0, k, 80) for k in (4, 8, 3)])


def nested(rng):
    finest = rng.integers(0, 24, 90)
    return np.column_stack([finest // 8, finest // 2, finest])


def nested_and_crossed(rng):
    finest = rng.integers(0, 12, 90)
    return np.column_stack([finest // 4, rng.integers(0, 5, 90), finest])


CASES = {
    "crossed": (crossed, ((0,), (0,)), 1),
    "slopes": (crossed, ((0, 1), (0,)), 1),
    "complete": (complete, ((0, 1), (0, 2)), 1),
    "slopes of both": (crossed, ((0, 1), (1, 2)), 1),
    "three": (three_crossed, ((0,), (0, 2), (1,)), 1),
    "nested": (nested, ((0, 1), (0,), (0,)), 3),
    "nested and crossed": (nested_and_crossed, ((0, 2), (0,), (0, 1)), 2),
}


class Example:
    """Rows, precision factors, and everything once more as dense matrices."""

    def __init__(self, name, weighted=False):
        make, self.random, self.num_steps = CASES[name]
        rng = np.random.default_rng(3)
        codes = make(rng)
        codes = np.column_stack([np.unique(c, return_inverse=True)[1] for c in codes.T])
        n = len(codes)
        x = np.column_stack([np.ones(n), rng.standard_normal((n, 2))])
        y = x @ [1.0, 0.5, -0.3] + rng.standard_normal(n)
        levels = tuple(int(c.max()) + 1 for c in codes.T)
        weight = rng.integers(1, 4, n).astype(float) if weighted else None
        self.rows = FactorRows(x, y, codes, weight, levels)
        self.lower = []
        for columns in self.random:
            r = len(columns)
            self.lower.append(np.tril(rng.standard_normal((r, r)), -1) + np.diag(1 + rng.random(r)))
        self.coef = np.array([0.8, 0.4, 0.1])
        self.data = CrossedStatistics.from_rows(self.rows, self.random)
        if weighted:
            x, y, codes = (np.repeat(a, weight.astype(int), axis=0) for a in (x, y, codes))
        designs = []
        for columns, each, number in zip(self.random, codes.T, levels, strict=True):
            z = np.zeros((len(y), number, len(columns)))
            z[np.arange(len(y)), each] = x[:, columns]
            designs.append(z.reshape(len(y), -1))
        self.z = np.concatenate(designs, axis=1)
        covariances = [
            np.kron(np.eye(number), np.linalg.inv(lower @ lower.T))
            for number, lower in zip(levels, self.lower, strict=True)
        ]
        self.prior = block_diag(*covariances)
        self.error = y - x @ self.coef
        precision = np.linalg.inv(self.prior) + self.z.T @ self.z / NOISE
        self.covariance = np.linalg.inv(precision)
        self.mean = self.covariance @ self.z.T @ self.error / NOISE

    @property
    def sums(self):
        return self.data.sums(None, jnp.asarray(self.coef), self.random)

    @property
    def system(self):
        data, order = self.data, self.data.plan.order
        sums = self.sums
        return schur.System.whiten(
            *(sums.gram, sums.cells, sums.rest_cells, sums.cross),
            jnp.asarray(NOISE),
            tuple(jnp.asarray(self.lower[f]) for f in order),
            data.plan,
        )

    def conditional(self):
        return schur.condition(schur.reduce(self.system, self.data.plan))

    def flat(self, whitened, numpy=np):
        """Effects of all factors in the order of the dense matrices."""
        parts = []
        for f, u in enumerate(self.data.plan.in_given_order(whitened)):
            effects = numpy.linalg.solve(self.lower[f].T, u)
            parts.append(effects.T[self.data.factors[f].original_order].ravel())
        return numpy.concatenate(parts)


@pytest.mark.parametrize("name", ["slopes of both", "complete"])
def test_many_effects_of_a_level_are_solved_once_per_level(name, monkeypatch):
    example = Example(name)
    few = schur.reduce(example.system, example.data.plan)
    monkeypatch.setattr(small, "UNROLL", 1)
    many = schur.reduce(example.system, example.data.plan)
    for one, other in zip(jax.tree.leaves(few), jax.tree.leaves(many), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_log_marginal_is_the_dense_one(name, weighted):
    example = Example(name, weighted)
    dense = example.z @ example.prior @ example.z.T + NOISE * np.eye(len(example.error))
    expected = multivariate_normal(np.zeros(len(dense)), dense).logpdf(example.error)
    square = example.sums.square
    reduced = schur.reduce(example.system, example.data.plan)
    found = schur.log_marginal(reduced, square, example.data.num_rows, jnp.asarray(NOISE))
    assert len(example.data.plan.steps) == example.num_steps
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_moments_are_the_dense_ones(name):
    example = Example(name)
    conditional, plan = example.conditional(), example.data.plan
    np.testing.assert_allclose(example.flat(schur.mean(conditional, plan)), example.mean, atol=1e-9)
    by_level = schur.level_covariances(example.system, plan)
    own = schur.covariance(conditional, plan)
    np.testing.assert_allclose(np.moveaxis(own.own, 0, -1), by_level[0], atol=1e-9)
    at = 0
    for f, each in enumerate(example.data.plan.in_given_order(by_level)):
        half = np.linalg.inv(example.lower[f])
        raw = np.einsum("ai,abk,bj->kij", half, np.asarray(each), half)
        for covariance in raw[np.asarray(example.data.factors[f].original_order)]:
            r = len(covariance)
            dense = example.covariance[at : at + r, at : at + r]
            np.testing.assert_allclose(covariance, dense, atol=1e-9)
            at += r


@pytest.mark.parametrize("name", CASES)
def test_draws_have_the_dense_covariance(name):
    # u = mean + B noise: B B' is the covariance, exactly.
    example = Example(name)
    conditional, plan = example.conditional(), example.data.plan
    sizes = [each.forward.shape for each in conditional.eliminated] + [conditional.forward.shape]

    def effects(flat):
        parts, at = [], 0
        for shape in sizes:
            parts.append(flat[at : at + int(np.prod(shape))].reshape(shape))
            at += int(np.prod(shape))
        whitened = schur.backwards(conditional, plan, parts[:-1], parts[-1])
        return example.flat(whitened, jnp)

    root = jax.jacobian(effects)(jnp.zeros(example.z.shape[1]))
    np.testing.assert_allclose(root @ root.T, example.covariance, atol=1e-9)
    draw = schur.sample(jax.random.key(1), conditional, plan)
    log_det = sum(
        levels * np.log(np.linalg.det(lower))
        for levels, lower in zip(example.rows.num_levels, example.lower, strict=True)
    )
    expected = multivariate_normal(example.mean, example.covariance).logpdf(example.flat(draw))
    found = schur.log_density(conditional, plan, draw) + log_det
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize("name", CASES)
def test_rows_of_any_levels_have_the_dense_covariance(name):
    example = Example(name)
    plan = example.data.plan
    found = schur.covariance(example.conditional(), plan)
    first = found.own.shape[0] * found.own.shape[1]
    cross = found.cross.reshape(first, -1)
    whole = np.block([[block_diag(*found.own), cross], [cross.T, np.asarray(found.others)]])
    # From the order of elimination and of memory to that of the dense matrices.
    start = dict(zip(plan.order, np.cumsum((0, *plan.columns)), strict=False))
    columns = [
        start[f] + np.asarray(data.original_order)[:, None] * r + np.arange(r)
        for f, (data, r) in enumerate(
            zip(example.data.factors, map(len, example.random), strict=True)
        )
    ]
    index = np.concatenate([each.ravel() for each in columns])
    halves = [np.linalg.inv(lower).T for lower in example.lower]
    to_raw = block_diag(
        *(np.kron(np.eye(k), h) for k, h in zip(example.rows.num_levels, halves, strict=True))
    )
    raw = to_raw @ whole[np.ix_(index, index)] @ to_raw.T
    # Covariances of two levels of the first factor are not computed.
    factor = np.repeat(np.arange(len(columns)), [each.size for each in columns])
    apart = (factor[:, None] == plan.order[0]) & (factor == plan.order[0]) & (raw == 0)
    np.testing.assert_allclose(raw[~apart], example.covariance[~apart], atol=1e-9)


@pytest.mark.parametrize("pairs", [True, False])
def test_sums_of_pairs_and_products_are_the_same(monkeypatch, pairs):
    monkeypatch.setattr(elimination, "SMALL", 0 if pairs else 10**9)
    monkeypatch.setattr(elimination, "PRODUCT", 0)
    example = Example("slopes of both")
    assert (example.data.plan.steps[0].among_rest is not None) == pairs
    test_moments_are_the_dense_ones("slopes of both")
    test_log_marginal_is_the_dense_one("slopes of both", False)


def test_nested_factors_leave_no_dense_matrix():
    rng = np.random.default_rng(0)
    finest = np.arange(20_000)
    codes = np.column_stack([finest // 100, finest // 10, finest])
    plan, _ = elimination.eliminate(codes, (200, 2_000, 20_000), (1, 1, 1))
    assert plan.num_rest == 0
    assert plan.order == (2, 1, 0)
    shuffled = np.column_stack([rng.permutation(finest) % 4_000, rng.permutation(finest) % 4_000])
    with pytest.raises(DataError, match="3,000 is the most"):
        elimination.eliminate(shuffled, (4_000, 4_000), (1, 1))
