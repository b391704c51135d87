"""Asset pricing with a term for months: ``(. | industry) + (1 | month)``.

All inputs of the asset pricing study are monthly, so the returns of one month share a shock, which
a model without months mistakes for an effect of that month's factors. Here months are a second
grouping factor; those of the test data are new levels.

Returns are scored one by one, and those of a month jointly: given theta and the industries'
effects the N returns of a month have covariance v I + w 11' with noise v and months' variance w::

    log p = -N/2 log(2 pi v) - log(1 + N w / v) / 2 - (e'e - w (1'e)^2 / (v + N w)) / (2 v)

averaged over draws of both, and reported per return.
"""

import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float
from scipy.special import logsumexp

import nghvi
from nghvi._core.errors import DataWarning
from nghvi.estimators.reader import DRAWS
from nghvi.inference import unravel_draws
from nghvi.models.mixed import MixedModel
from nghvi.models.parameters import MixedParams
from nghvi.paper.finance import StockPanel
from nghvi.paper.finance.stock_panel import GROUP, RETURN, mean_se
from nghvi.paper.studies import asset_pricing
from nghvi.paper.studies.asset_pricing_views import compared
from nghvi.paper.studies.compared import fit
from nghvi.paper.studies.exhibits import Table
from nghvi.paper.studies.problems import Part
from nghvi.paper.studies.store import Row
from nghvi.paper.studies.study import Options, Study
from nghvi.posterior import predictive
from nghvi.posterior.effects import effects_of

MONTH = "month"
JOINT_DRAWS = 2000
SEEDS = 3
"""Seeds of networks; linear models agree over seeds."""


class Model(NamedTuple):
    """One line of the table."""

    name: str
    random: str
    hidden: tuple[int, ...] = ()
    month: bool = True

    @property
    def effects(self) -> Any:
        """The setting ``random``."""
        return {GROUP: self.random, MONTH: "intercept"} if self.month else self.random


COEFFICIENTS = "Random Coefficients"
MODELS = (
    Model("Random Intercept", "intercept"),
    Model(COEFFICIENTS, "all"),
    Model(COEFFICIENTS, "all", month=False),
    Model("DMM [8]", "all", (8,)),
    Model("DMM [32, 16, 8]", "all", (32, 16, 8)),
)


def cells(options: Options) -> list[Row]:
    """Linear models first, then networks seed by seed."""
    _, name = asset_pricing.panel_of(options.data, options.quick)
    linear = [(options.seed, model) for model in MODELS if not model.hidden]
    deep = [(seed, m) for seed in options.seeds(SEEDS) for m in MODELS if m.hidden]
    return [
        {"data": name, "factors": factors, "model": model.name, "month": model.month, "seed": seed}
        for chosen in (linear, deep)
        for seed, model in chosen
        for factors in asset_pricing.FACTOR_SETS
    ]


def run(cell: Row, options: Options) -> Row:
    """Fit one model by the library's defaults, score the test months."""
    panel, _ = asset_pricing.panel_of(options.data, options.quick)
    model = next(m for m in MODELS if (m.name, m.month) == (cell["model"], cell["month"]))
    names = list(asset_pricing.FACTOR_SETS[cell["factors"]])
    groups = [GROUP, MONTH] if model.month else [GROUP]
    train, test = (part.assign(month=part[MONTH].astype(str)) for part in (panel.train, panel.test))
    estimator = nghvi.MixedRegressor(
        groups,
        random=model.effects,
        hidden=model.hidden,
        steps=options.steps(1000) if options.quick and model.hidden else None,
        standardize=False,
        random_state=cell["seed"],
    )
    columns = [*names, *groups]
    found = fit(estimator, Part(train[columns], train[RETURN].to_numpy()))
    posterior = estimator.posterior_
    kept = not posterior.model.trunk.linear
    return (
        found
        | {"status": estimator.status_, "network": kept, "num_test": len(test)}
        | _sds(estimator)
        | _single(estimator, test, columns)
        | joint_scores(estimator, test, names)
        | {"panel": _facts(panel)}
    )


def _sds(estimator: Any) -> Row:
    """Posterior means of the sds of months and of noise."""
    summary = estimator.summary()
    name = f"effects_sd[intercept | {MONTH}]"
    month = float(summary.loc[name, "mean"]) if name in summary.index else 0.0
    return {"sd_month": month, "sd_noise": float(np.sqrt(summary.loc["noise_var", "mean"]))}


def _single(estimator: Any, test: pd.DataFrame, columns: list[str]) -> Row:
    """Log score and R2 of returns one by one; by month what the report compares."""
    y = test[RETURN].to_numpy()
    with warnings.catch_warnings():  # that no test month is known is the point
        warnings.simplefilter("ignore", DataWarning)
        request = estimator.reader_.request(estimator.posterior_, test[columns], draws=DRAWS)
    predicted = predictive.predict(estimator.posterior_, request, y)
    monthly = pd.Series(np.asarray(predicted.log_density)).groupby(test[MONTH].to_numpy()).mean()
    scores = monthly.to_numpy()
    error = np.mean((y - predicted.mean) ** 2)
    return {
        "months_test": list(monthly.index),
        "log_scores_test": scores.round(6).tolist(),
        "log_score_test": float(scores.mean()),
        "log_score_test_se": mean_se(scores),
        "r2_test": float(1 - error / np.var(y)),
    }


def joint_scores(estimator: Any, test: pd.DataFrame, names: list[str]) -> Row:
    """Log density of all returns of a month together, per return."""
    posterior = estimator.posterior_
    by_cell = test.groupby([MONTH, GROUP])[RETURN]
    known = posterior.names.factors[0].levels if posterior.names.factors else estimator.groups_
    if not np.array_equal(known, np.unique(test[GROUP])):
        raise ValueError("every industry of the fit must be in every test month.")
    number, total = (
        getattr(by_cell, kind)().unstack(fill_value=0).to_numpy(float) for kind in ("size", "sum")
    )
    square = (test[RETURN] ** 2).groupby(test[MONTH]).sum().to_numpy()
    x = test.groupby(MONTH)[names].first().to_numpy()
    if posterior.model.trunk.linear:
        x = np.column_stack([np.ones(len(x)), x])
    theta, effects = posterior.joint(JOINT_DRAWS, seed=0)
    params = unravel_draws(posterior.model, posterior.data, theta)
    given = jnp.asarray(x), jnp.asarray(number), jnp.asarray(total), jnp.asarray(square)
    drawn = np.asarray(_log_densities(posterior.model, params, jnp.asarray(effects[0]), given))
    firms = number.sum(axis=1)
    scores, halves = (
        [_averaged(part) / firms for part in parts] for parts in ((drawn,), np.split(drawn, 2))
    )
    return {
        "joint_scores_test": scores[0].round(6).tolist(),
        "joint_score_test": float(scores[0].mean()),
        "joint_score_test_se": mean_se(scores[0]),
        "joint_score_of_halves": [float(half.mean()) for half in halves],
    }


def _averaged(log_densities: Float[np.ndarray, "s t"]) -> Float[np.ndarray, " t"]:
    return logsumexp(log_densities, axis=0) - np.log(len(log_densities))


@eqx.filter_jit
def _log_densities(
    model: MixedModel, params: MixedParams, effects: Float[Array, "s k r"], given: tuple
) -> Float[Array, "s t"]:
    """Log density of every month's returns, given draws of theta and of the industries' effects."""
    x, number, total, square = given

    def one(draw: tuple[MixedParams, Array]) -> Array:
        params, own = draw
        h = model.features(params, x)
        eta = (h @ model.all_coef(params))[:, None] + model.design(h)[:, : own.shape[1]] @ own.T
        noise, month = jnp.exp(params.dispersion[0]), jnp.zeros(())
        if len(effects_of(model).sizes) > 1:
            month = effects_of(model).precision_factors(params)[1][0, 0] ** -2.0
        squares = square - 2 * jnp.sum(total * eta, axis=1) + jnp.sum(number * eta**2, axis=1)
        left, firms = jnp.sum(total - number * eta, axis=1), jnp.sum(number, axis=1)
        fit = (squares - month * left**2 / (noise + firms * month)) / noise
        spread = firms * jnp.log(2 * jnp.pi * noise) + jnp.log1p(firms * month / noise)
        return -0.5 * (fit + spread)

    return jax.lax.map(one, (params, effects))


def _facts(panel: StockPanel) -> Row:
    return {"firms": len(panel.firms), "groups": int(panel.firms[GROUP].nunique())}


def tables(rows: list[Row]) -> list[Table]:
    """Every model compared with the linear one with months and the same factors."""
    facts = rows[0]["panel"]
    source = f"{rows[0]['data']}: {facts['firms']} firms in {facts['groups']} groups"
    caption = (
        f"Asset pricing with months ({source}): log scores per return in the test months, with "
        "returns scored one by one and with all returns of a month scored jointly. Differences "
        "are from random coefficients with months, standard errors by blocks of months. Without a "
        "month: the smallest and the largest difference if any one month is left out"
    )
    return [Table("months_models", caption, _lines(rows))]


def _lines(rows: list[Row]) -> pd.DataFrame:
    found = []
    for row in rows:
        base = baseline(row, rows)
        line = {key: row[key] for key in ("model", "factors", "seed")}
        line["months"] = "yes" if row["month"] else "no"
        line["network"] = ("kept" if row["network"] else "given up") if is_deep(row) else "-"
        for kind, title in KINDS.items():
            score, se = row[f"{kind}_score_test"], row[f"{kind}_score_test_se"]
            line[title] = f"{score:.4f} ± {se:.4f}"
            if base is None or base is row:
                line |= {f"{title}, difference": "-", f"{title}, without a month": "-"}
                continue
            gain, error, low, high = compared(row, base, kind)
            line[f"{title}, difference"] = f"{gain:.4f} ± {error:.4f}"
            line[f"{title}, without a month"] = f"{low:.4f} to {high:.4f}"
        found.append(line | {
            "R2": f"{row['r2_test']:.4f}",
            "sd month": f"{row['sd_month']:.4f}" if row["month"] else "-",
            "sd noise": f"{row['sd_noise']:.4f}",
            "ELBO": f"{row['elbo']:.1f}",
            "status": row["status"],
            "steps": row["steps"],
            "seconds": f"{row['seconds']:.0f}",
        })  # fmt: skip
    return pd.DataFrame(found).set_index("model")


KINDS = {"log": "one by one", "joint": "jointly"}
"""What is scored."""


def is_deep(row: Row) -> bool:
    """Whether the model was to have a network."""
    return row["model"].startswith("DMM")


def baseline(row: Row, rows: list[Row]) -> Row | None:
    """Random coefficients with months and the same factors."""
    same = (r for r in rows if r["factors"] == row["factors"] and r["month"])
    return next((r for r in same if r["model"] == COEFFICIENTS), None)


STUDY = Study(
    "months",
    "asset pricing with a term for months",
    cells,
    run,
    tables,
    describe=asset_pricing.describe,
    needs="--data PATH",
)
