"""Sentences and tables for people to read, made from a posterior."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nghvi.data.frame import Column, DataError
from nghvi.inference import Inference
from nghvi.posterior.mixed_posterior import MixedPosterior
from nghvi.posterior.prior_influence import (
    PRIOR_DRAWS,
    diagnosis,
    draw_prior,
    powers,
    quantiles_of,
    sensitivity,
    stated_priors,
    weight_rows,
)
from nghvi.posterior.summaries import LEVEL as LEVEL
from nghvi.posterior.summaries import Summary, described
from nghvi.recipes.importance import RELIABLE
from nghvi.recipes.verdict import Status

INPUT_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the inputs that a fit keeps."""
HARMLESS = 50.0
"""Parameters and logarithms of units below this size have finite squares of exponentials."""
GOOD = 0.5
"""Pareto shape up to which importance weights have a finite variance."""
NEGLIGIBLE = 0.01
"""Nats of evidence below which it does not matter what a Gaussian misses: even if all of it were in
one coordinate, its mean would be off by 0.14 sds, or its sd by 10 %."""


class Draws(NamedTuple):
    """What the draws of a fit are, and how well the Gaussian alone describes the posterior."""

    k_hat: float
    """Pareto shape of the weights of the Gaussian's own draws."""
    gap: float
    """Nats by which the log evidence exceeds the ELBO."""
    corrected: bool
    """Whether importance weights correct the draws."""
    effective: float
    """Effective number of draws."""
    network: bool
    """Whether the model is a network, whose many modes always cause a large k-hat."""
    chains: int = 0
    """Number of Hamiltonian chains that moved the draws; 0 if none did."""

    @property
    def negligible(self) -> bool:
        """Whether what the Gaussian misses is too little to matter.

        k-hat is the shape of a tail, whatever its size. Only corrected draws tell the evidence well
        enough to say how little is missed.
        """
        return self.corrected and self.gap < NEGLIGIBLE

    @property
    def missing_part(self) -> bool:
        """Whether the Gaussian misses so much of the posterior that it has to be said."""
        return np.isfinite(self.k_hat) and self.k_hat > RELIABLE and not self.negligible


def about_draws(draws: Draws) -> str:
    """Return the sentence that follows a verdict: what the draws are, and what a large k-hat means.

    The many modes of a network always give a large k-hat, so it is mentioned only for other models.
    """
    k_hat = f"k-hat is {draws.k_hat:.2f}: the Gaussian"
    if draws.corrected:
        number = f"{draws.effective:.0f} effective"
        weights = f"importance weights towards the exact posterior ({number})."
        if not draws.missing_part:
            return f"Draws are corrected by {weights}"
        return (
            f"{k_hat} alone misses part of the posterior, which does no harm here, because draws "
            f"are corrected by {weights}"
        )
    if draws.chains:
        return f"Draws are moved towards the exact posterior by {draws.chains} Hamiltonian chains."
    if draws.network or not draws.missing_part:
        return ""
    return (
        f"But {k_hat} misses part of the posterior and its draws are "
        "not corrected. Means are close; treat sds, tails and the log evidence with care. Leave "
        "rank, method and importance at their defaults if they were set, or use simpler effects "
        "or a tighter prior."
    )


def k_hat_meaning(draws: Draws) -> str:
    """Return what k-hat says about the Gaussian family, and what was done about it."""
    if np.isnan(draws.k_hat):
        return "k-hat was not computed: the density of the parameters is not known exactly."
    if draws.k_hat <= GOOD:
        found = "the Gaussian family describes the posterior well"
    elif draws.k_hat <= RELIABLE:
        found = "the Gaussian family misses details of the posterior, but means and sds are close"
    elif draws.negligible:
        found = f"the Gaussian family misses far tails only, {max(draws.gap, 0):.1g} nats in all"
    else:
        found = "the Gaussian family misses part of the posterior"
    if draws.corrected:
        remedy = "; draws are corrected by importance weights, so results do not depend on it"
    elif draws.k_hat <= RELIABLE:
        remedy = ""
    elif draws.network:
        remedy = "; a network's many modes always cause this, so judge it by its predictions"
    else:
        remedy = "; treat sds and tails with care, and compare with a simpler model"
    return f"k-hat is {draws.k_hat:.2f}: {found}{remedy}."


def verdict_sentence(posterior: MixedPosterior) -> str:
    """Return how the fit ended, and what its draws are, in words."""
    verdict = posterior.inference.verdict
    beside = about_draws(draws_of(posterior))
    usable = verdict.status is not Status.FAILED
    return " ".join([verdict.sentence, *([beside] if beside and usable else [])])


def draws_of(posterior: MixedPosterior) -> Draws:
    """Return what there is to say about the draws of a fit."""
    inference, pool = posterior.inference, posterior.inference.pool
    return Draws(
        inference.k_hat,
        inference.log_evidence - inference.elbo,
        pool.corrected,
        pool.effective,
        network=not posterior.model.trunk.linear,
        chains=pool.chains,
    )


def trace_table(inference: Inference, jacobian: float) -> pd.DataFrame:
    """Return one row per step: stage, noisy objective (raw scale), largest remaining errors."""

    def largest(errors: Any) -> np.ndarray:
        found = np.abs(np.asarray(errors))
        return found.max(axis=1) if found.ndim > 1 else found

    columns = ["stage", "elbo", "mean_error", "sd_error", "gradient_norm"]
    frames = [
        pd.DataFrame(
            {
                "stage": name,
                "elbo": np.asarray(info.log_target) - np.asarray(info.log_q) - jacobian,
                "mean_error": largest(info.remaining.mean),
                "sd_error": largest(info.remaining.scale),
                "gradient_norm": np.asarray(info.gradient_norm),
            }
        )
        for name, info in inference.run.traces
    ]
    if not frames:
        return pd.DataFrame(columns=columns)
    table = pd.concat(frames, ignore_index=True)
    table.index.name = "step"
    return table


def named_scalars(posterior: MixedPosterior, theta: np.ndarray) -> dict[str, np.ndarray]:
    """Return every reported parameter, by name, at each row of theta."""
    return by_name(posterior, posterior.globals_at(theta))


def coefficient_names(posterior: MixedPosterior) -> tuple[str, ...]:
    """Return the names of reported coefficients, without an intercept that cutpoints replace."""
    return posterior.names.features[int(posterior.model.response.takes_intercept) :]


def by_name(posterior: MixedPosterior, at: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return draws of coefficients, covariances and the rest under the names in ``summary``."""
    names, shown = posterior.names, coefficient_names(posterior)
    out = {name: at["coef"][:, j] for j, name in enumerate(names.features) if name in shown}
    out |= {name: values for name, values in at.items() if name not in ("coef", "effects_cov")}
    effects, cov = names.effects, at["effects_cov"]
    for i, name in enumerate(effects):
        out[f"effects_sd[{name}]"] = np.sqrt(cov[:, i, i])
    for name, pair in names.correlations.items():
        first, second = (out[f"effects_sd[{effects[i]}]"] for i in pair)
        out[name] = cov[:, *pair] / first / second
    return out


class Drawn(NamedTuple):
    """Weighted draws of every reported parameter, and their summary."""

    values: dict[str, np.ndarray]
    weight: np.ndarray
    """Weights of the draws, which sum to one."""
    summary: pd.DataFrame


def drawn_parameters(posterior: MixedPosterior, level: float = LEVEL) -> Drawn:
    """Return the pool of draws by name, with weighted moments and quantiles."""
    pool = posterior.inference.pool
    scalars = named_scalars(posterior, pool.theta)
    table = described(scalars, pool.weight, level).rename_axis("parameter")
    return Drawn(scalars, pool.weight, table)


def summary_table(posterior: MixedPosterior, level: float) -> pd.DataFrame:
    """Return weighted moments and quantiles of every parameter over the pool of draws."""
    return drawn_parameters(posterior, level).summary


def ratio_table(posterior: MixedPosterior, level: float) -> Summary:
    """Return weighted moments and quantiles of the exponential of every coefficient."""
    response, linear = posterior.model.response, posterior.model.trunk.linear
    if response.ratio is None or not linear:
        kind = f"the {response.name} response" if linear else "a network"
        raise DataError(f"coefficients of {kind} are not log ratios; use summary() instead.")
    scalars = named_scalars(posterior, posterior.inference.pool.theta)
    with np.errstate(over="ignore"):  # a coefficient in unusual units may be large
        ratios = {name: np.exp(scalars[name]) for name in coefficient_names(posterior)}
    return described(ratios, posterior.inference.pool.weight, level).rename_axis(response.ratio)


def covariance_table(posterior: MixedPosterior, level: float) -> Summary:
    """Return weighted moments and quantiles of every variance and covariance of the effects."""
    cov, effects = posterior.globals_at(posterior.inference.pool.theta)["effects_cov"], {}
    names = posterior.names.effects
    for block in posterior.names.blocks:
        for i in range(block.start, block.stop):
            for j in range(block.start, i + 1):
                effects[names[j], names[i]] = cov[:, i, j]
    table = described(effects, posterior.inference.pool.weight, level)
    table.index = pd.MultiIndex.from_tuples(effects or [], names=["effect", "with"])
    return table


def is_finite(posterior: MixedPosterior) -> bool:
    """Return whether the summary is finite; it is computed only if that is in doubt."""
    theta, scaling = posterior.inference.pool.theta, posterior.scaling
    units = np.abs(np.log([*scaling.scale, scaling.y_scale]))
    if np.abs(theta).max(initial=0.0) < HARMLESS and units.max() < HARMLESS:
        return True
    return bool(np.isfinite(summary_table(posterior, LEVEL).to_numpy()).all())


def prior_table(posterior: MixedPosterior, standardized: bool) -> pd.DataFrame:
    """Return every prior as text, the scale it is stated on, and its quantiles in raw units."""
    params = draw_prior(posterior, PRIOR_DRAWS, 0)
    drawn = by_name(posterior, posterior.globals_of(params))
    rows: dict[str, dict] = {
        name: {"prior": said, **quantiles_of(drawn[name])}
        for name, said in stated_priors(posterior).items()
    }
    rows |= weight_rows(posterior, params)
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.insert(1, "scale", "standardised data" if standardized else "raw data")
    return table.rename_axis("parameter")


def sensitivity_table(posterior: MixedPosterior) -> pd.DataFrame:
    """Return the sensitivity of every reported parameter to the powers of prior and likelihood."""
    found = powers(posterior)
    rows = {}
    for name, values in named_scalars(posterior, found.theta).items():
        if np.ptp(values) == 0:
            continue
        prior = sensitivity(values, found.log_prior)
        likelihood = sensitivity(values, found.log_likelihood)
        rows[name] = {
            "prior": prior,
            "likelihood": likelihood,
            "diagnosis": diagnosis(prior, likelihood),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("parameter")


def quantile_table(values: np.ndarray, names: tuple[str, ...]) -> pd.DataFrame:
    """Return quantiles of every input."""
    found = np.quantile(values, INPUT_QUANTILES, axis=0)
    index = pd.Index(INPUT_QUANTILES, name="quantile")
    return pd.DataFrame(found, index=index, columns=list(names))


def typical_inputs(raw: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return quantiles of the numbers among raw columns, and the most common value of others."""
    measured = [c for c in raw if raw[c].dtype.kind in "iuf"]
    values = raw[measured].to_numpy(float).reshape(len(raw), len(measured))
    # Only values that occur, since a number may be the code of a category.
    found = np.quantile(values, INPUT_QUANTILES, axis=0, method="inverted_cdf")
    index = pd.Index(INPUT_QUANTILES, name="quantile")
    quantiles = pd.DataFrame(found, index=index, columns=measured)
    others = {str(c): raw[c].mode().iloc[0] for c in raw if c not in measured}
    return quantiles, {c: v for c, v in others.items() if isinstance(v, str | bool | np.bool_)}


def effects_table(posterior: MixedPosterior, factor: Column | None = None) -> pd.DataFrame:
    """Return posterior mean and sd of every effect; ``factor`` names one of several factors."""
    chosen = _place_of_factor(posterior, factor) if posterior.names.factors else 0
    return list(effects_tables(posterior).values())[chosen]


def effects_tables(posterior: MixedPosterior) -> dict[str, pd.DataFrame]:
    """Return mean and sd of every effect by factor; a single factor is called "group"."""
    names, found = posterior.names, {}
    factors = names.factors or [("group", names.effects, names.groups)]
    moments = zip(factors, posterior.effect_moments(), strict=True)
    for (heading, effects, levels), (mean, sd) in moments:
        columns = {}
        for j, name in enumerate(effects):
            columns[f"{name}_mean"], columns[f"{name}_sd"] = mean[:, j], sd[:, j]
        found[heading] = pd.DataFrame(columns, index=pd.Index(levels, name=heading))
    return found


def _place_of_factor(posterior: MixedPosterior, factor: Column | None) -> int:
    known = [each.name for each in posterior.names.factors]
    if factor is None or str(factor) not in known:
        raise DataError(
            f"factor={factor!r}: name one of the grouping factors {', '.join(map(repr, known))}."
        )
    return known.index(str(factor))
