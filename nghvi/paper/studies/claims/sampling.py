"""Claims about draws, priors, gradients and averages."""

import jax
import numpy as np
from scipy import stats
from scipy.special import log_ndtr, ndtr, ndtri

from nghvi.paper.methods.nagvac_step import sobol_normals
from nghvi.paper.studies import printed_values, problems
from nghvi.paper.studies.claims.claim import Claim
from nghvi.paper.studies.compared import with_intercept
from nghvi.paper.studies.store import Row
from nghvi.paper.studies.study import Options

SCRAMBLES = 100
GROUPS, ROWS, CHAINS, LONG = 100, 14, 100, 30
STEPS = 3000


def sobol(options: Options) -> Row:
    """Six consecutive points of one dimension as a draw, and six dimensions of one point."""
    rng, r, number = np.random.default_rng([11, options.seed]), 6, 20
    points = np.stack([stats.qmc.Sobol(number, rng=rng).random(8)[:r] for _ in range(SCRAMBLES)])
    program = stats.norm.ppf(points)  # scrambles, coordinates of a draw, draws
    ours = np.asarray(sobol_normals(jax.random.key(options.seed), number, (r, SCRAMBLES)))
    first, second = program[:, 0].ravel(), program[:, 1].ravel()
    return {
        "correlation": float(np.corrcoef(first, second)[0, 1]),
        "variance": float(program.sum(axis=1).var() / r),
        "ours": float(ours.sum(axis=1).var() / r),
    }


def two_sweeps(options: Options) -> Row:
    """How much of a N(0, 1) start is left in the mean effect after some Gibbs sweeps."""
    rng, found = np.random.default_rng([12, options.seed]), {}
    offset, start = 0.5 + rng.normal(size=(GROUPS, ROWS)), rng.normal(size=GROUPS)
    for name, sd in (("text", 1.0), ("code", 0.1)):
        noise = rng.normal(size=offset.shape) + sd * rng.normal(size=(GROUPS, 1))
        y = offset + noise > 0
        mean, variance = _intercepts(offset, y, sd)
        spread = 1 / (ROWS + sd**-2)
        effects = np.tile(start, (CHAINS, 1))
        for sweep in range(1, LONG + 1):
            eta = offset + effects[..., None]
            below = ndtr(-eta)
            u = rng.random(eta.shape)
            utility = eta + ndtri(np.where(y, below + u * (1 - below), u * below))
            centre = spread * np.sum(utility - offset, axis=-1)
            effects = centre + np.sqrt(spread) * rng.normal(size=centre.shape)
            if sweep in (2, LONG):
                distance, error = start - mean, effects.mean(axis=0) - mean
                found[f"left_{name}_{sweep}"] = float(distance @ error / (distance @ distance))
                found[f"bias_{name}_{sweep}"] = float(np.sqrt(np.mean(error**2 / variance)))
    return found


def _intercepts(offset: np.ndarray, y: np.ndarray, sd: float) -> tuple[np.ndarray, np.ndarray]:
    """Exact mean and variance of each group's random intercept in a probit model, on a grid."""
    grid = sd * np.linspace(-6, 6, 301)
    eta = np.where(y, 1, -1)[..., None] * (offset[..., None] + grid)
    log_weight = log_ndtr(eta).sum(axis=1) - 0.5 * (grid / sd) ** 2
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    mean = weight @ grid
    return mean, weight @ grid**2 - mean**2


def gamma_prior(options: Options) -> Row:
    """Slopes in log v of Gamma(0.1, rate 0.1) and InverseGamma(0.1, 0.1), at v = 0.01."""
    small, step = 0.01, 1e-5
    found = {}
    for name, prior in (
        ("program", stats.gamma(0.1, scale=10)),
        ("text", stats.invgamma(0.1, scale=0.1)),
    ):
        t = np.log(small) + np.array([-step, step])
        low, high = prior.logpdf(np.exp(t)) + t
        found[name] = float((high - low) / (2 * step))
        found[f"below_{name}"] = float(prior.cdf(small))
    return found


def residual(options: Options) -> Row:
    """sigma^-2 d eta / d c, summed over rows, in a linear model, against differences."""
    part = problems.example1(100, 1.0, options.seed).train
    x = with_intercept(part)
    units = np.eye(x.shape[1])  # differences of any length are exact for a square
    high, low = (-0.5 * np.sum((part.y[:, None] - x @ (s * units)) ** 2, axis=0) for s in (1, -1))
    exact, printed = 0.5 * (high - low), x.sum(axis=0)
    return {
        "cosine": float(exact @ printed / np.linalg.norm(exact) / np.linalg.norm(printed)),
        "corrected": float(np.linalg.norm(x.T @ part.y - exact) / np.linalg.norm(exact)),
    }


def times(options: Options) -> Row:
    """Seconds per step times 3,000 steps."""
    found: Row = {}
    for name in ("example2a", "example2b"):
        printed = printed_values.SUMMARY[name]
        found[f"{name}_printed"] = printed["minutes"]
        found[name] = printed["seconds_a_step"] * STEPS / 60
    found["seconds"] = 60 * printed_values.SUMMARY["example2b"]["minutes"] / STEPS
    return found


def last_steps(options: Options) -> Row:
    """Steps N - 100 to N, both included."""
    return {"values": len(range(STEPS - 100, STEPS + 1))}


def r2(options: Options) -> Row:
    """Mean squared error over a variance with denominator n - 1."""
    n, printed = 2 * problems.NUM_GROUPS, printed_values.EXAMPLE_2A["ng-hvi"]["r2_test"]
    rng = np.random.default_rng([13, options.seed])
    y = rng.normal(size=n)
    error = np.sqrt(1 - printed) * rng.permutation(y - y.mean())
    right = 1 - np.sum(error**2) / np.sum((y - y.mean()) ** 2)
    return {"excess": float(1 - np.mean(error**2) / np.var(y, ddof=1) - right), "n": n}


CLAIMS = (
    Claim(
        "Sobol draws",
        "program of NAGVAC",
        "coordinates of an effect are consecutive Sobol points of one dimension",
        "they are dependent: the first two have correlation {correlation:.2f}, and the variance of "
        "their sum is {variance:.2f} of what the weights assume (the library's: {ours:.2f})",
        sobol,
    ),
    Claim(
        "predictive effects",
        "program, Example 3",
        "two Gibbs sweeps from a N(0, 1) start for every draw",
        "{left_text_2:.0%} of the distance to the start is left with effects of sd 1 (errors of "
        "{bias_text_2:.2f} posterior sd), {left_code_2:.0%} with sd 0.1; after 30 sweeps "
        "{left_text_30:.0%}",
        two_sweeps,
    ),
    Claim(
        "prior of the variances",
        "Web Appendix D.1; program, Example 3",
        "InverseGamma(0.1, 0.1) in the text",
        "the program's is Gamma(0.1, rate 0.1): at a variance of 0.01 the text's prior pulls the "
        "log variance up with slope {text:.1f}, the program's with {program:.2f}; prior "
        "probability below 0.01: {below_text:.1e} and {below_program:.2f}",
        gamma_prior,
    ),
    Claim(
        "gradient of the likelihood",
        "Web Appendix D.1",
        "grad_c log p(y_k|.) = sigma^-2 grad_c eta_k",
        "the residual y_k - eta_k is missing: printed and true gradient of a linear model have "
        "cosine {cosine:.2f}; with it the difference is {corrected:.0e}",
        residual,
    ),
    Claim(
        "time of Example 2(b)",
        "Tables 2 and 7",
        "16.5 s per step, 133.2 minutes for 3,000 steps",
        "3,000 such steps take {example2b:.0f} minutes; {example2b_printed:.1f} minutes are "
        "{seconds:.1f} s per step. In 2(a) 3,000 steps of 0.05 s take {example2a:.1f} minutes, not "
        "{example2a_printed:.1f}, which Table 2 gives for SG-HVI with 10,000",
        times,
    ),
    Claim(
        "last 100 steps",
        "Sections 3.4 and 4; program",
        "averages over the last 100 steps",
        "the program's range holds {values} values",
        last_steps,
    ),
    Claim(
        "R2",
        "program",
        "1 - mean squared error / variance",
        "its variance has denominator n - 1: too high by {excess:.1e} with {n} test rows, too "
        "little to matter",
        r2,
    ),
)
