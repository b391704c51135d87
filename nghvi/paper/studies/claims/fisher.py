"""Claims about Fisher information matrices and the systems solved with them.

Right versions are the library's or dense algebra, wrong ones are written out here or, if a study
runs them, with the method.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from nghvi._linalg.lowrank import pack_lower
from nghvi._linalg.tree import SolveInfo, SolveOptions
from nghvi.families.factor import FactorGaussian, factor_size
from nghvi.paper.methods.nagvac_step import program_solve
from nghvi.paper.methods.snngm import Block
from nghvi.paper.studies.claims.claim import Claim, size
from nghvi.paper.studies.store import Row
from nghvi.paper.studies.study import Options

DIM, RANK, DAMPING = 30, 3, 10.0
EVEN, UNEVEN = 0.5, 1.5
"""Standard deviations of the logarithms of d."""
STATES = 1000


def relative(wrong: np.ndarray, right: np.ndarray) -> float:
    """Distance in units of the right one's norm."""
    return float(np.linalg.norm(wrong - right) / np.linalg.norm(right))


class State:
    """A random factor Gaussian whose log scales have sd ``spread``, and a gradient there."""

    def __init__(self, seed: int, spread: float = EVEN) -> None:
        rng = np.random.default_rng([7, seed])
        self.b = np.tril(rng.normal(size=(DIM, RANK)))
        self.d = np.exp(spread * rng.normal(size=DIM))
        self.right = rng.normal(size=DIM * (RANK + 2))
        self.precision = np.linalg.inv(self.b @ self.b.T + np.diag(self.d**2))

    def family(self, leaves: np.ndarray) -> FactorGaussian:
        """The family's member with these mean, loadings (column by column) and scale."""
        mean, loadings, scale = np.split(leaves, [DIM, DIM * (RANK + 1)])
        packed = pack_lower(jnp.asarray(loadings.reshape(RANK, DIM).T))
        return FactorGaussian(jnp.asarray(mean), packed, jnp.asarray(scale), RANK)

    @property
    def q(self) -> FactorGaussian:
        """The state as the library has it."""
        return self.family(np.concatenate([np.zeros(DIM), self.b.T.ravel(), self.d]))

    def solve(self, options: SolveOptions) -> tuple[FactorGaussian, SolveInfo]:
        """The library's damped natural gradient with the paper's Fisher information."""
        return _solve(self.q, self.family(self.right), options)

    def dense(self) -> np.ndarray:
        """Exact Fisher information of free loadings and scales: tr(P dS P dS) / 2."""
        units = np.eye(DIM)
        rows, columns = np.tril_indices(DIM, 0, RANK)
        sides = [(units[i], self.b[:, a]) for i, a in zip(rows, columns, strict=True)]
        sides += [(units[i], self.d[i] * units[i]) for i in range(DIM)]
        changes = np.stack([np.outer(u, v) + np.outer(v, u) for u, v in sides])
        half = changes @ self.precision
        return 0.5 * np.einsum("aij,bji->ab", half, half, optimize=True)

    def printed(self) -> np.ndarray:
        """The paper's: 2 P_ij A_ab in place of P_ij A_ab + C_ib C_ja."""
        p, c = self.precision, self.precision @ self.b
        rows, columns = np.tril_indices(DIM, 0, RANK)
        a, free = self.b.T @ c, slice(rows.size)
        matrix = self.dense()
        matrix[free, free] = 2 * p[np.ix_(rows, rows)] * a[np.ix_(columns, columns)]
        return matrix


@functools.partial(jax.jit, static_argnums=2)
def _solve(
    q: FactorGaussian, gradient: FactorGaussian, options: SolveOptions
) -> tuple[FactorGaussian, SolveInfo]:
    return q.natural_gradient(gradient, DAMPING, "printed", options)


def second_block(x: FactorGaussian) -> np.ndarray:
    """Free loadings and scales as one vector."""
    return np.concatenate([x.packed_loadings, x.scale])


def printed_inverse(b: np.ndarray, d: np.ndarray, damping: float) -> np.ndarray:
    """Appendix B: C~ an inverse instead of its root, E~ without the damping and of wrong sign."""
    c_tilde = np.linalg.inv(np.eye(b.shape[1]) + (b / d[:, None] ** 2).T @ b)
    e = b @ c_tilde @ c_tilde.T
    h = -np.sum(e * b, axis=1) / d**4 - (1 + damping) / d**2
    g = b / d[:, None] ** 2 @ c_tilde
    scaled = g / h[:, None]
    return -np.diag(1 / h) + scaled @ np.linalg.solve(np.eye(b.shape[1]) + g.T @ scaled, scaled.T)


def damped_inverse(precision: np.ndarray, damping: float) -> np.ndarray:
    """(P + damping diag P)^-1, dense."""
    return np.linalg.inv(precision + damping * np.diag(np.diag(precision)))


def mean_block(options: Options) -> Row:
    """The printed inverse in random states of Example 1's size; the library's in a larger one."""
    rng, errors = np.random.default_rng([6, options.seed]), {}
    m, rank = size("example1", "m"), size("example1", "p")
    for name, damping in (("usual", DAMPING), ("little", 0.1)):
        each = []
        for _ in range(STATES // 5):
            b, d = np.tril(rng.normal(size=(m, rank))), np.exp(EVEN * rng.normal(size=m))
            exact = damped_inverse(np.linalg.inv(b @ b.T + np.diag(d**2)), damping)
            each.append(relative(printed_inverse(b, d, damping), exact))
        errors[name], errors[f"{name}_largest"] = float(np.median(each)), max(each)
    state = State(options.seed)
    exact = damped_inverse(state.precision, DAMPING) @ state.right[:DIM]
    ours = np.asarray(state.solve(SolveOptions())[0].mean)
    return {**errors, "ours": relative(ours, exact)}


def loadings_block(options: Options) -> Row:
    """The printed block against the trace formula; how much too short its steps can be."""
    state = State(options.seed)
    exact, printed = state.dense(), state.printed()
    block = slice(exact.shape[0] - DIM)
    unit = 1 / np.sqrt(np.diag(exact))  # else the smallest scale alone would be seen
    scaled, larger = (unit[:, None] * matrix * unit for matrix in (exact, printed))
    excess = np.linalg.eigvalsh(larger - scaled)
    tangent = state.family(state.right)
    product = jax.jit(lambda x: state.q.fisher_product(x, "exact"))(tangent)
    right = exact @ second_block(tangent)
    return {
        "printed": relative(larger[block, block], scaled[block, block]),
        "ours": relative(second_block(product), right),
        "least_excess": float(excess[0]),
    }


def scale_block(options: Options) -> Row:
    """d_i^2 P_ij^2 in place of d_i d_j P_ij^2: not symmetric."""
    state = State(options.seed)
    right = 2 * np.outer(state.d, state.d) * state.precision**2
    program = 2 * state.d[:, None] ** 2 * state.precision**2
    return {
        "program": relative(program, right),
        "asymmetry": relative(program.T, program),
    }


def conjugate_gradients(options: Options) -> Row:
    """Twenty plain iterations against a converged preconditioned solve."""
    state = State(options.seed, UNEVEN)
    matrix = state.printed()
    matrix += DAMPING * np.diag(np.diag(matrix))
    exact = np.linalg.solve(matrix, second_block(state.family(state.right)))
    found = {}
    for name, chosen in (("plain", SolveOptions.published()), ("jacobi", SolveOptions())):
        solution, info = state.solve(chosen)
        found[f"{name}_error"] = relative(second_block(solution), exact)
        found[f"{name}_iterations"] = int(info.iterations)
    return found


def nagvac(options: Options) -> Row:
    """The one-factor solve with a wrong coefficient and the cross block transposed."""
    rng, m = np.random.default_rng([8, options.seed]), 10
    errors, ascent = [], []
    for _ in range(STATES):
        b, c, right = rng.normal(size=m), np.exp(0.5 * rng.normal(size=m)), rng.normal(size=2 * m)
        p = np.linalg.inv(np.outer(b, b) + np.diag(c**2))
        pb = p @ b
        f22, f33 = (b @ pb) * p + np.outer(pb, pb), 2 * np.outer(c, c) * p**2
        cross = 2 * p * (c * pb)  # b in rows, c in columns
        exact = np.linalg.solve(np.block([[f22, cross], [cross.T, f33]]), right)
        q, gradient = (
            FactorGaussian(jnp.zeros(m), jnp.asarray(x), jnp.asarray(y), 1, signed_scale=True)
            for x, y in ((b, c), (right[:m], right[m:]))
        )
        found = program_solve(q, gradient)
        program = np.concatenate([found.packed_loadings, found.scale])
        errors.append(relative(program, exact))
        ascent.append(float(right @ program))
    return {
        "median_error": float(np.median(errors)),
        "not_ascent": int(np.sum(np.array(ascent) <= 0)),
        "states": STATES,
    }


def davi_locals(options: Options) -> Row:
    """C'C (slope + C^-1 z) in place of C C' (slope + C^-T z)."""
    rng, r = np.random.default_rng([9, options.seed]), 6
    errors = []
    for _ in range(STATES):
        factor = np.tril(0.5 * rng.normal(size=(r, r)), -1) + np.diag(rng.uniform(0.5, 1.5, r))
        noise, slope = rng.normal(size=(2, r))
        exact = factor @ factor.T @ (slope + np.linalg.solve(factor.T, noise))
        program = factor.T @ factor @ (slope + np.linalg.solve(factor, noise))
        errors.append(relative(program, exact))
    last = Block(jnp.zeros(r), jnp.asarray(factor))
    ours = np.asarray(last.natural_gradient(jnp.asarray(noise), jnp.asarray(slope)).mean)
    return {"median_error": float(np.median(errors)), "ours": relative(ours, exact)}


def davi_start(options: Options) -> Row:
    """KL of the local parts at their start, 0.1 I, from their optimum, I."""
    r, groups = size("example2a", "r"), size("example2a", "K")
    each = 0.5 * r * (0.1**2 - 1) - r * np.log(0.1)
    return {"each": each, "groups": groups, "total": groups * each}


def free_parameters(options: Options) -> Row:
    """m (p + 2), and what is left without the zeros above the diagonal of B."""
    found = {}
    for name in ("example2a", "example2b"):
        found[f"{name}_printed"] = size(name, "lambda")
        found[name] = factor_size(size(name, "m"), size(name, "p"))
    return found


CLAIMS = (
    Claim(
        "inverse of F11",
        "Appendix B",
        "a closed form of the damped inverse of the mean's block",
        "C~ must be a root of (I + B'D^-2 B)^-1 and E~ needs the factor -delta: in random states "
        "of Example 1's size the printed form has relative error {usual:.2f} with delta = 10 "
        "(median; up to {usual_largest:.2f}), {little:.2f} with 0.1; the right one {ours:.0e}",
        mean_block,
    ),
    Claim(
        "F22",
        "Section 3.3, Web Appendix B; program",
        "F22 = 2 (B'PB x P)",
        "relative difference {printed:.2f}, here about twice the right block (the library's: "
        "{ours:.0e}); printed minus exact is never negative (least eigenvalue {least_excess:.0e}), "
        "so steps still climb, those of B too short",
        loadings_block,
    ),
    Claim(
        "F33",
        "program",
        "2 d_i^2 P_ij^2 for 2 d_i d_j P_ij^2",
        "off by {program:.0%} and not symmetric ({asymmetry:.0%}), though conjugate gradients need "
        "a symmetric matrix",
        scale_block,
    ),
    Claim(
        "solver",
        "program",
        "conjugate gradients, no preconditioner, at most 20 iterations, result unchecked",
        "with unequal d the result has relative error {plain_error:.2f} after {plain_iterations} "
        "iterations; with the diagonal as preconditioner {jacobi_error:.0e} after "
        "{jacobi_iterations}",
        conjugate_gradients,
    ),
    Claim(
        "NAGVAC's inverse",
        "program of NAGVAC",
        "natural gradient of the one-factor Gaussian",
        "median relative error {median_error:.2f}; in {not_ascent} of {states} random states the "
        "direction leads down",
        nagvac,
    ),
    Claim(
        "DAVI's local blocks",
        "program, Example 2(a)",
        "natural gradient of each group's Gaussian",
        "its factors are transposed: median relative error {median_error:.2f} once they are not "
        "diagonal (the library's {ours:.0e})",
        davi_locals,
    ),
    Claim(
        "DAVI's start",
        "program, Example 2(a)",
        "factors of the local blocks start at 0.1 I",
        "the optimum, I, is known: the start costs {each:.1f} nats per group, {total:.0f} over "
        "{groups} groups (Example 1 starts at the optimum)",
        davi_start,
    ),
    Claim(
        "dim(lambda)",
        "Table 7",
        "440 and 13,895 in Examples 2(a) and 2(b)",
        "these count the zeros above the diagonal of B; free are {example2a} and {example2b}",
        free_parameters,
    ),
)
