"""NUTS posteriors of binary data with a correlated random intercept and slope, kept by data.

    logit or probit P(y_i = 1) = x_i' beta + z_i' alpha_k,   alpha_k ~ N(0, Omega),   z = (1, time)

NumPyro samples beta, the log sds and the Fisher transform of the correlation, and the effects in
non-centred form. The prior of Omega is Huang and Wand's, written here in those coordinates on its
own (:func:`log_huang_wand`); a test holds it against the library's. :func:`by_grid` is a second
opinion that shares nothing with NUTS but the prior: the effects are integrated by the trapezoidal
rule on a fixed fine grid, and draws of a multivariate t are weighted by the exact posterior.
"""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats
from jax import Array
from scipy.special import gammaln, multigammaln

from benchmarks.problems import Problem
from nghvi.paper.studies.facts import about
from nghvi.priors import HuangWand, Priors
from nghvi.recipes.importance import smooth_weights
from nghvi.responses import RESPONSES
from nghvi.storage.file import replaced

KEPT = Path(__file__).parent / "results" / "longitudinal_nuts.json"

CHAINS, WARMUP, DRAWS = 4, 800, 2500
ENOUGH, MIXED, KNOWN, ROUNDS = 1500, 1.01, 0.02, 24
"""Bulk effective draws, R-hat and relative Monte Carlo error of sds to reach, which heavy tails
make hard; the chains are prolonged at most so many times."""

DEGREES = 5.0
REACH, SPACING = 7.0, 0.2
"""Of the grid, in sds of the effects: 71 x 71 nodes."""


def key_of(problem: Problem, priors: Priors) -> str:
    """Changes with any number of the data or the priors."""
    effects = _effects_prior(priors)
    stated = [problem.response, problem.random, priors.coef_sd, effects.df, effects.scale]
    digest = hashlib.sha256(json.dumps(stated).encode())
    for array in (problem.x, problem.y, problem.group):
        # Rounded, so that the last bits of another machine's arithmetic do not matter.
        digest.update(np.round(np.asarray(array, float), 8).tobytes())
    return digest.hexdigest()[:16]


def _effects_prior(priors: Priors) -> HuangWand:
    assert isinstance(priors.effects, HuangWand), "the references know no other prior"
    return priors.effects


def log_huang_wand(log_sd: Array, fisher: Array, prior: HuangWand) -> Array:
    """Log density of (log sds, atanh correlation) of two effects, constants included.

    p(Omega) is proportional to |Omega|^-((nu + 4) / 2) prod_j (nu Omega^jj + A^-2)^-((nu + 2) / 2),
    Omega^jj = 1 / (s_j^2 (1 - rho^2)); the Jacobian is 4 s_1^3 s_2^3 (1 - rho^2).
    """
    nu, a = prior.df, np.asarray(prior.scale)
    log_rest = -2 * jnp.log(jnp.cosh(fisher))  # log(1 - rho^2)
    total = jnp.sum(log_sd)
    constant = (nu + 1) * np.log(nu) - multigammaln((nu + 1) / 2, 2)
    constant += 2 * (gammaln((nu + 2) / 2) - np.log(a) - 0.5 * np.log(np.pi))
    diagonal = nu * jnp.exp(-2 * log_sd - log_rest) + a**-2.0
    density = -0.5 * (nu + 4) * (2 * total + log_rest) - 0.5 * (nu + 2) * jnp.sum(jnp.log(diagonal))
    return constant + density + 2 * np.log(2) + 3 * total + log_rest


def root(log_sd: Array, fisher: Array) -> Array:
    """Lower Cholesky factor of Omega."""
    sd, rho = jnp.exp(log_sd), jnp.tanh(fisher)
    return jnp.array([[sd[0], 0.0], [rho * sd[1], sd[1] / jnp.cosh(fisher)]])


def quantities(problem: Problem, coef: Any, log_sd: Any, fisher: Any) -> dict[str, np.ndarray]:
    """Draws of what is compared, by name; any leading axes."""
    coef, log_sd, fisher = (np.asarray(a, float) for a in (coef, log_sd, fisher))
    found = {f"coef {t}": coef[..., j] for j, t in enumerate(problem.terms)}
    for j, term in enumerate(problem.random_terms):
        found |= {f"sd {term}": np.exp(log_sd[..., j]), f"log sd {term}": log_sd[..., j]}
    return found | {"correlation": np.tanh(fisher), "atanh correlation": fisher}


def _log_prob(problem: Problem, eta: Array, y: Array) -> Array:
    return RESPONSES[problem.response]().log_prob(y, eta, jnp.zeros(0))


def _by_person(problem: Problem) -> tuple[Array, Array, Array]:
    """Design, y and whether there is such a visit, as (persons, visits): no gather, no scatter."""
    sizes = np.bincount(problem.group)
    visit = np.arange(len(problem.y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)

    def place(values: np.ndarray) -> Array:
        out = np.zeros((len(sizes), sizes.max(), *values.shape[1:]))
        out[problem.group, visit] = values
        return jnp.asarray(out)

    return place(problem.design), place(problem.y), place(np.ones(len(problem.y)))


def load_or_run(problem: Problem, priors: Priors, *, grid: bool = False) -> dict:
    """The kept posterior of these very data and priors, or a new one; ``grid``: and the check."""
    key = key_of(problem, priors)
    found = _kept().get(key)
    if found is None:
        jax.clear_caches()  # a program per data set would pile up in memory
        found = {"problem": problem.name, "rows": len(problem.y), **run(problem, priors)}
        found["about"] = about()
        _keep(key, found)
    if grid and "grid" not in found:
        found["grid"] = by_grid(problem, priors, found)
        _keep(key, found)
    return found


def _kept() -> dict:
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


def _keep(key: str, found: dict) -> None:
    with replaced(KEPT) as file:
        file.write((json.dumps(_kept() | {key: found}, indent=1) + "\n").encode())


def run(problem: Problem, priors: Priors, seed: int = 1) -> dict:
    """Means and sds with their Monte Carlo errors, by NUTS."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    design, y, present = _by_person(problem)
    varying = design[..., jnp.array(problem.random)]

    def model() -> None:
        normal = dist.Normal(0.0, priors.coef_sd).expand([design.shape[-1]]).to_event(1)
        coef = numpyro.sample("coef", normal)
        real = dist.constraints.real
        log_sd = numpyro.sample("log_sd", dist.ImproperUniform(real, (), (2,)).to_event(0))
        fisher = numpyro.sample("fisher", dist.ImproperUniform(real, (), ()))
        numpyro.factor("omega", log_huang_wand(log_sd, fisher, _effects_prior(priors)))
        standard = dist.Normal(0.0, 1.0).expand([problem.num_groups, 2]).to_event(2)
        effects = numpyro.sample("whitened", standard) @ root(log_sd, fisher).T
        eta = design @ coef + jnp.sum(varying * effects[:, None], axis=-1)
        numpyro.factor("y", jnp.sum(present * _log_prob(problem, eta, y)))

    begun = time.perf_counter()
    kernel = NUTS(model, dense_mass=[("coef", "log_sd", "fisher")], target_accept_prob=0.9)
    sampler = MCMC(
        kernel,
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="sequential",
        progress_bar=False,
    )
    sampler.run(jax.random.key(seed), extra_fields=("diverging", "num_steps"))
    parts, diverging, steps = [], 0, []
    for turn in range(ROUNDS):
        if turn:
            sampler.post_warmup_state = sampler.last_state
            sampler.run(sampler.last_state.rng_key, extra_fields=("diverging", "num_steps"))
        drawn = sampler.get_samples(group_by_chain=True)
        parts.append([np.asarray(drawn[site]) for site in ("coef", "log_sd", "fisher")])
        extra = sampler.get_extra_fields()
        diverging += int(np.sum(extra["diverging"]))
        steps.append(float(np.mean(extra["num_steps"])))
        joined = [np.concatenate(pieces, axis=1) for pieces in zip(*parts, strict=True)]
        table = {n: _moments(v) for n, v in quantities(problem, *joined).items()}
        enough = all(
            row["ess_bulk"] >= ENOUGH
            and row["r_hat"] < MIXED
            and row["mcse_sd"] <= KNOWN * row["sd"]
            for row in table.values()
        )
        if enough:
            break
    return {
        "chains": CHAINS,
        "draws": joined[0].shape[1],
        "warmup": WARMUP,
        "leapfrog_steps_per_draw": round(float(np.mean(steps)), 1),
        "divergent_draws": diverging,
        "seconds": round(time.perf_counter() - begun, 1),
        "enough": enough,
        "parameters": table,
    }


def _moments(draws: np.ndarray) -> dict[str, float]:
    """Of draws (chains, draws)."""
    return {
        "mean": float(draws.mean()),
        "sd": float(draws.std(ddof=1)),
        "mcse_mean": float(array_stats.mcse(draws, method="mean")),
        "mcse_sd": float(array_stats.mcse(draws, method="sd")),
        "ess_bulk": round(float(array_stats.ess(draws, method="bulk")), 1),
        "ess_tail": round(float(array_stats.ess(draws, method="tail", prob=(0.05, 0.95))), 1),
        "r_hat": round(float(array_stats.rhat(draws)), 5),
    }


def log_likelihood_by_grid(
    problem: Problem, coef: Array, log_sd: Array, fisher: Array, spacing: float = SPACING
) -> Array:
    """log p(y | theta) by the trapezoidal rule over standardised effects."""
    line = jnp.arange(-REACH, REACH + spacing / 2, spacing)
    nodes = jnp.stack(jnp.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    log_weight = -0.5 * jnp.sum(nodes**2, axis=1) + 2 * jnp.log(spacing) - jnp.log(2 * jnp.pi)
    effects = nodes @ root(log_sd, fisher).T
    design, y = jnp.asarray(problem.design), jnp.asarray(problem.y)
    fixed, varying = design @ coef, design[:, jnp.array(problem.random)]
    eta = fixed[:, None] + varying @ effects.T
    by_row = _log_prob(problem, eta, y[:, None])
    by_group = jax.ops.segment_sum(by_row, jnp.asarray(problem.group), problem.num_groups)
    return jnp.sum(jax.scipy.special.logsumexp(by_group + log_weight, axis=1))


def by_grid(problem: Problem, priors: Priors, nuts: dict, draws: int = 8000, seed: int = 1) -> dict:
    """Means and sds by importance sampling with effects integrated on the grid.

    The proposal is a multivariate t about the means and sds found by NUTS, adapted once.
    """
    q = len(problem.terms)
    names = [f"coef {t}" for t in problem.terms] + [f"log sd {t}" for t in problem.random_terms]
    names.append("atanh correlation")

    @jax.jit
    def log_posterior(theta: Array) -> Array:
        coef, log_sd, fisher = theta[:q], theta[q : q + 2], theta[q + 2]
        prior = log_huang_wand(log_sd, fisher, _effects_prior(priors))
        prior += jnp.sum(-0.5 * (coef / np.asarray(priors.coef_sd)) ** 2)
        return prior + log_likelihood_by_grid(problem, coef, log_sd, fisher)

    centre = np.array([nuts["parameters"][n]["mean"] for n in names])
    scale = np.diag([nuts["parameters"][n]["sd"] for n in names])
    rng, m = np.random.default_rng(seed), q + 3
    for number in (draws // 4, draws):
        standard = rng.standard_normal((number, m))
        standard /= np.sqrt(rng.chisquare(DEGREES, (number, 1)) / DEGREES)
        theta = centre + standard @ scale.T
        target = np.array([float(log_posterior(t)) for t in theta])
        proposal = -0.5 * (DEGREES + m) * np.log1p(np.sum(standard**2, axis=1) / DEGREES)
        weight, k_hat = smooth_weights(target - proposal)
        centre = weight @ theta
        scale = np.linalg.cholesky((weight[:, None] * (theta - centre)).T @ (theta - centre))
    values = quantities(problem, theta[:, :q], theta[:, q : q + 2], theta[:, q + 2])
    return {
        "k_hat": k_hat,
        "effective_draws": float(1 / np.sum(weight**2)),
        "parameters": {
            name: {
                "mean": float(weight @ v),
                "sd": float(np.sqrt(weight @ (v - weight @ v) ** 2)),
            }
            for name, v in values.items()
        },
    }
