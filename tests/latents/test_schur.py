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
from nghvi.latents import krylov, schur, selected_inverse
from tests.oracles import by_one_program

NOISE = 0.7
NO_PROBES = jnp.zeros((0, 0))


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
    """Rows, precision factors, and the same as dense matrices."""

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
        coef = jnp.asarray(self.coef)
        return by_one_program(lambda data: data.sums(None, coef, self.random), self.data)

    @property
    def system(self):
        sums = self.sums
        return by_one_program(
            schur.System.whiten,
            *(sums.gram, sums.cells, sums.rest_cells, sums.cross),
            jnp.asarray(NOISE),
            tuple(jnp.asarray(self.lower[f]) for f in self.data.plan.order),
            self.data.plan,
        )

    def conditional(self):
        return by_one_program(
            lambda system, plan: schur.condition(schur.reduce(system, plan)),
            *(self.system, self.data.plan),
        )

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
    few = by_one_program(schur.reduce, example.system, example.data.plan)
    monkeypatch.setattr(small, "UNROLL", 1)
    many = by_one_program(schur.reduce, example.system, example.data.plan)
    for one, other in zip(jax.tree.leaves(few), jax.tree.leaves(many), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_log_marginal_is_the_dense_one(name, weighted):
    example = Example(name, weighted)
    dense = example.z @ example.prior @ example.z.T + NOISE * np.eye(len(example.error))
    expected = multivariate_normal(np.zeros(len(dense)), dense).logpdf(example.error)
    square = example.sums.square
    found = selected_inverse.log_noise(square, example.data.num_rows, jnp.asarray(NOISE))
    found += by_one_program(
        selected_inverse.log_evidence, example.system, example.data.plan, NO_PROBES
    )
    assert len(example.data.plan.steps) == example.num_steps
    np.testing.assert_allclose(found, expected, rtol=1e-10)


ORDERS = [(name, 1) for name in CASES] + [("slopes of both", 2), ("nested and crossed", 2)]


@pytest.mark.parametrize(("name", "order"), ORDERS)
def test_derivatives_are_those_of_the_dense_log_marginal(name, order):
    example = Example(name)
    plan, sums = example.data.plan, example.sums

    def blockwise(noise, lower):
        by_step = tuple(lower[f] for f in plan.order)
        blocks = (sums.gram, sums.cells, sums.rest_cells, sums.cross)
        system = schur.System.whiten(*blocks, noise, by_step, plan)
        alone = selected_inverse.log_noise(sums.square, example.data.num_rows, noise)
        return alone + selected_inverse.log_evidence(system, plan, NO_PROBES)

    def dense(noise, lower):
        pairs = zip(example.rows.num_levels, lower, strict=True)
        priors = [jnp.kron(jnp.eye(k), jnp.linalg.inv(each @ each.T)) for k, each in pairs]
        prior = jax.scipy.linalg.block_diag(*priors)
        covariance = example.z @ prior @ example.z.T + noise * jnp.eye(len(example.error))
        zero = jnp.zeros(len(example.error))
        return jax.scipy.stats.multivariate_normal.logpdf(example.error, zero, covariance)

    at = jnp.asarray(NOISE), list(map(jnp.asarray, example.lower))
    found, expected = (jax.grad(of, argnums=(0, 1)) for of in (blockwise, dense))
    if order == 2:  # along one direction
        along = jnp.ones(()), [jnp.tril(jnp.ones_like(each)) for each in at[1]]
        found, expected = (lambda *x, of=of: jax.jvp(of, x, along)[1] for of in (found, expected))
    pairs = zip(*(jax.tree.leaves(jax.jit(of)(*at)) for of in (found, expected)), strict=True)
    for one, other in pairs:
        lower = map(np.tril, map(np.atleast_2d, (one, other)))
        np.testing.assert_allclose(*lower, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", CASES)
def test_moments_are_the_dense_ones(name):
    example = Example(name)
    conditional, plan = example.conditional(), example.data.plan
    np.testing.assert_allclose(
        example.flat(by_one_program(schur.mean, conditional, plan)), example.mean, atol=1e-9
    )
    by_level = by_one_program(selected_inverse.selected_inverse, conditional, plan).diagonal
    own = by_one_program(schur.covariance, conditional, plan)
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

    root = by_one_program(jax.jacobian(effects), jnp.zeros(example.z.shape[1]))
    np.testing.assert_allclose(root @ root.T, example.covariance, atol=1e-9)
    draw = by_one_program(schur.sample, jax.random.key(1), conditional, plan)
    log_det = sum(
        levels * np.log(np.linalg.det(lower))
        for levels, lower in zip(example.rows.num_levels, example.lower, strict=True)
    )
    expected = multivariate_normal(example.mean, example.covariance).logpdf(example.flat(draw))
    found = (
        by_one_program(selected_inverse.log_density, example.system, plan, NO_PROBES, draw)
        + log_det
    )
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize("name", CASES)
def test_rows_of_any_levels_have_the_dense_covariance(name):
    example = Example(name)
    plan = example.data.plan
    found = by_one_program(schur.covariance, example.conditional(), plan)
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
    test_derivatives_are_those_of_the_dense_log_marginal("slopes of both", 1)
    test_log_marginal_is_the_dense_one("slopes of both", False)


def planned(codes, levels):
    patterns = elimination.patterns_of(codes, levels)
    return elimination.eliminate(patterns, levels, (1,) * len(levels))


def test_nested_factors_leave_no_dense_matrix():
    rng = np.random.default_rng(0)
    finest = np.arange(20_000)
    codes = np.column_stack([finest // 100, finest // 10, finest])
    plan, _ = planned(codes, (200, 2_000, 20_000))
    assert plan.num_rest == 0
    assert plan.order == (2, 1, 0)
    shuffled = np.column_stack([rng.permutation(finest) % 4_000, rng.permutation(finest) % 4_000])
    plan, _ = planned(shuffled, (4_000, 4_000))
    assert not plan.dense
    with pytest.raises(DataError, match="at most 3,000 are allowed"):
        elimination.check_dense(plan)


def all_directions(plan):
    """Probes z with a mean of z z' that is the identity, so that no estimate has an error."""
    return np.sqrt(plan.num_rest) * jnp.eye(plan.num_rest)


LARGE = [name for name in CASES if name != "nested"]


@pytest.mark.parametrize("name", LARGE)
def test_a_rest_that_is_not_formed_gives_what_a_dense_one_gives(name, monkeypatch):
    example = Example(name)
    plan, system = example.data.plan, example.system
    both = jax.value_and_grad(selected_inverse.log_evidence, allow_int=True)
    value, slope = by_one_program(both, system, plan, NO_PROBES)
    dense = by_one_program(selected_inverse.solved, system, plan, NO_PROBES)
    density = by_one_program(selected_inverse.log_density, system, plan, NO_PROBES, dense.mean)
    monkeypatch.setattr(elimination, "MOST_COLUMNS", 0)
    plan, probes = Example(name).data.plan, all_directions(plan)
    assert not plan.dense
    found, found_slope = by_one_program(both, system, plan, probes)
    np.testing.assert_allclose(found, value, rtol=1e-9)
    large = by_one_program(selected_inverse.solved, system, plan, probes)
    expected = jax.tree.leaves((slope, dense.mean, dense.covariance))
    for one, other in zip(
        jax.tree.leaves((found_slope, large.mean, large.covariance)), expected, strict=True
    ):
        symmetric = np.ndim(one) == 3 and one.shape[0] == one.shape[1]
        if symmetric and one.shape == other.shape:
            one, other = (0.5 * (x + np.swapaxes(x, 0, 1)) for x in (one, other))
        np.testing.assert_allclose(one, other, atol=1e-8)
    found = by_one_program(selected_inverse.log_density, system, plan, probes, dense.mean)
    np.testing.assert_allclose(found, density, rtol=1e-9)


def test_random_signs_know_their_error(monkeypatch):
    # 64 probes: |z| < 4 has a false-alarm rate of about 2e-4.
    example = Example("slopes of both")
    exact = by_one_program(selected_inverse.solved, example.system, example.data.plan, NO_PROBES)
    monkeypatch.setattr(elimination, "MOST_COLUMNS", 0)
    plan = Example("slopes of both").data.plan
    signs = krylov.signs(jax.random.key(2), 64, plan.num_rest)
    found = by_one_program(selected_inverse.solved, example.system, plan, signs)
    assert 0 < found.error < 0.2
    assert abs(found.log_evidence - exact.log_evidence) < 4 * found.error


@pytest.mark.parametrize("name", ["slopes of both", "nested and crossed"])
def test_draws_without_a_dense_rest_have_the_conditional_distribution(name, monkeypatch):
    example = Example(name)
    monkeypatch.setattr(elimination, "MOST_COLUMNS", 0)
    plan, system = Example(name).data.plan, example.system
    rest = krylov.rest_of(system, schur.reduce(system, plan), plan)

    @jax.jit
    def deviations(key):
        pair = [krylov.draw(key, rest, plan, sign) for sign in (1.0, -1.0)]
        middle = tuple(0.5 * (a + b) for a, b in zip(*pair, strict=True))
        return middle, tuple(a - b for a, b in zip(pair[0], middle, strict=True))

    middle, _ = deviations(jax.random.key(0))
    np.testing.assert_allclose(example.flat(middle), example.mean, atol=1e-7)
    # (u - m)'M(u - m) of 500 draws is chi square: a mean 4.5 sds off has a chance of 1e-5.
    keys = jax.random.split(jax.random.key(1), 500)
    squares = jax.lax.map(
        lambda key: selected_inverse.quadratic(system, plan, deviations(key)[1]), keys
    )
    size = sum(plan.columns)
    assert abs(squares.mean() - size) < 4.5 * np.sqrt(2 * size / 500)


def test_functions_of_a_matrix_by_lanczos():
    rng = np.random.default_rng(5)
    half = rng.standard_normal((40, 60))
    matrix, start = half @ half.T / 40 + 0.1 * np.eye(40), rng.standard_normal(40)
    values, vectors = np.linalg.eigh(matrix)
    found = krylov.lanczos(lambda v: jnp.asarray(matrix) @ v, jnp.asarray(start))
    assert found.found
    for ours, theirs in ((jnp.reciprocal, np.reciprocal), (jnp.log, np.log)):
        expected = vectors @ (theirs(values) * (vectors.T @ start))
        np.testing.assert_allclose(found.times(ours), expected, rtol=1e-6)
        np.testing.assert_allclose(found.quadratic(ours), start @ expected, rtol=1e-9)
    nothing = krylov.lanczos(lambda v: jnp.asarray(matrix) @ v, jnp.zeros(40))
    assert nothing.found
    np.testing.assert_array_equal(nothing.times(jnp.reciprocal), 0)
