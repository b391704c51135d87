"""Asset pricing: returns of firms by industry, linear models, networks and deep mixed models.

Without ``--data`` the panel is a synthetic one, and every table says so. Scores are of returns
standardised by their training moments; standard errors draw blocks of months.
"""

import functools
import pathlib
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import nghvi
from nghvi.data.frame import DataError
from nghvi.estimators.reader import DRAWS
from nghvi.paper.finance import FF3, FF5, StockPanel, load_panel, synthetic_panel
from nghvi.paper.finance.stock_panel import GROUP, RETURN, mean_se, r2_se
from nghvi.paper.studies.asset_pricing_views import figures, tables
from nghvi.paper.studies.compared import fit
from nghvi.paper.studies.problems import Part
from nghvi.paper.studies.store import Row, StudyError
from nghvi.paper.studies.study import Options, Study
from nghvi.posterior import predictive
from nghvi.priors import InverseGamma, Priors
from nghvi.responses import RESPONSES

FACTOR_SETS = {"FF3": FF3, "FF5": FF5}
SMALL, LARGE = (8,), (32, 16, 8)
NETWORK_STEPS = {"gaussian": 10_000, "student-t": 3_000}
"""With Student-t noise a step costs as much as ten others: effects are drawn row by row."""
LEVELS = (0.5, 0.9, 0.99)
"""Levels of the intervals whose coverage is counted."""
REFERENCES = {"low": "2005-07", "moderate": "2012-05", "extreme": "2008-10"}
"""Months of the Lek profiles by volatility of the market, the paper's."""
LARGEST, LEK_DRAWS = 10, 500
SIZE, QUICK_SIZE = (240, 40), (40, 12)
"""Firms and groups of the synthetic panel; with many, Student-t models take minutes."""


class Model(NamedTuple):
    """One line of the tables."""

    name: str
    random: str | None = None
    """Which coefficients vary by industry; None is a model without groups."""
    hidden: tuple[int, ...] = ()
    rank: int | str = "auto"
    method: str = "auto"
    priors: str = "default"
    covariance: str = "full"
    response: str = "gaussian"

    @property
    def is_slow(self) -> bool:
        """Whether effects of a group must be integrated by points or drawn."""
        return self.response == "student-t" and self.random is not None


LINEAR = Model("Linear")
COEFFICIENTS = Model("Random Coefficients", "all")
DEEP_SMALL = Model("DMM [8]", "all", SMALL, 3)
DEEP_LARGE = Model("DMM [32, 16, 8]", "all", LARGE, 5)
PAPER = (
    LINEAR,
    Model("Random Intercept", "intercept"),
    COEFFICIENTS,
    Model("FNN [8]", None, SMALL, method="least-squares"),
    DEEP_SMALL,
    Model("FNN [32, 16, 8]", None, LARGE, method="least-squares"),
    DEEP_LARGE,
    LINEAR._replace(response="student-t"),
    COEFFICIENTS._replace(response="student-t"),
    DEEP_SMALL._replace(response="student-t"),
    DEEP_LARGE._replace(response="student-t"),
)
"""With both sets of factors; the paper's and their twins with Student-t noise."""
ABLATIONS = (
    COEFFICIENTS._replace(priors="paper"),
    DEEP_SMALL._replace(priors="paper"),
    DEEP_LARGE._replace(priors="paper"),
    COEFFICIENTS._replace(covariance="diagonal"),
    DEEP_SMALL._replace(covariance="diagonal"),
    DEEP_LARGE._replace(covariance="diagonal"),
    DEEP_SMALL._replace(rank=0),
    DEEP_SMALL._replace(rank=5),
    DEEP_LARGE._replace(rank=0),
    DEEP_LARGE._replace(rank=3),
)
"""One setting changed, with three factors."""


@functools.lru_cache(maxsize=2)
def panel_of(path: pathlib.Path | None, quick: bool = False) -> tuple[StockPanel, str]:
    """The panel and its name in the rows."""
    firms, groups = QUICK_SIZE if quick else SIZE
    try:
        if path is None:
            panel = synthetic_panel(num_firms=firms, num_groups=groups)
        else:
            panel = load_panel(path)
    except DataError as error:
        raise StudyError(f"--data: {error}") from error
    return panel, "synthetic" if path is None else f"data {panel.fingerprint()}"


def describe(options: Options) -> str:
    """What the study runs on."""
    panel, _ = panel_of(options.data, options.quick)
    said = "" if options.data else "no --data: a SYNTHETIC panel stands in for real returns; "
    months = panel.train["month"].min(), panel.test["month"].max()
    return (
        f"{said}{len(panel.firms)} firms in {panel.firms[GROUP].nunique()} groups, "
        f"{months[0]} to {months[1]}, {len(panel.dropped)} firms left out"
    )


def cells(options: Options) -> list[Row]:
    """The models with both sets of factors, then one change at a time."""
    _, name = panel_of(options.data, options.quick)
    chosen = [(factors, model) for factors in FACTOR_SETS for model in PAPER]
    chosen += [("FF3", model) for model in ABLATIONS]
    return [
        {
            "data": name,
            "factors": factors,
            "model": model.name,
            "response": model.response,
            "priors": model.priors,
            "covariance": model.covariance,
            "rank": model.rank,
            "seed": options.seed,
        }
        for factors, model in chosen
        if model.response in RESPONSES and not (options.quick and model.is_slow)
    ]


def run(cell: Row, options: Options) -> Row:
    """Fit one model, score both parts, keep what the pictures show."""
    panel, _ = panel_of(options.data, options.quick)
    model = _model(cell)
    names = list(FACTOR_SETS[cell["factors"]])
    columns = names if model.random is None else [*names, GROUP]
    estimator = regressor(model, cell["seed"], options)
    found = fit(estimator, Part(panel.train[columns], panel.train[RETURN].to_numpy()))
    found["converged"] = bool(estimator.converged_)
    found |= noise_posterior(estimator, len(panel.train))
    found |= scores(estimator, panel, columns)
    found["panel"] = _facts(panel)
    if model == DEEP_LARGE:
        found["lek"] = _profiles(estimator, panel, names)
    if model == COEFFICIENTS:
        found["premia"] = _premia(estimator, panel, names)
    return found


def regressor(model: Model, seed: int, options: Options) -> nghvi.MixedRegressor:
    """The estimator of a model; the data are standardised already."""
    priors = Priors.paper() if model.priors == "paper" else Priors(noise=InverseGamma())
    network = model.hidden and model.method == "auto"
    steps = options.steps(NETWORK_STEPS[model.response]) if network else None
    return nghvi.MixedRegressor(
        None if model.random is None else GROUP,
        random="auto" if model.random is None else model.random,
        hidden=model.hidden,
        skip=False,
        rank=model.rank,
        method=model.method,
        priors=priors,
        covariance=model.covariance,
        response=model.response,
        steps=steps,
        standardize=False,
        random_state=seed,
    )


def _model(cell: Row) -> Model:
    return next(
        model
        for model in (*PAPER, *ABLATIONS)
        if all(cell[k] == getattr(model, k) for k in ("response", "priors", "covariance", "rank"))
        and cell["model"] == model.name
    )


def noise_posterior(estimator: Any, num_rows: int) -> Row:
    """Posterior of log sigma2, the sd that a Gaussian model's should have, degrees of freedom."""
    pool = estimator.posterior_.inference.pool
    reported = estimator.posterior_.globals_at(pool.theta)
    student = "noise_scale" in reported
    values = np.log(reported["noise_scale"] ** 2 if student else reported["noise_var"])
    mean = float(pool.weight @ values)
    sd = float(np.sqrt(pool.weight @ (values - mean) ** 2))
    found = {
        "log_noise_var": mean,
        "log_noise_var_sd": sd,
        "usual_sd": float(np.sqrt(2 / num_rows)),
    }
    return found | ({"degrees": float(pool.weight @ reported["degrees"])} if student else {})


def scores(estimator: Any, panel: StockPanel, columns: list[str]) -> Row:
    """Scores of both parts with standard errors; by month what the report resamples."""
    frame = pd.concat([panel.train, panel.test], ignore_index=True)
    X, y = frame[columns], frame[RETURN].to_numpy()
    rows = pd.DataFrame({"month": frame["month"], "y": y, "y_square": y**2})
    # One pass for means and densities; the data are on the fitted scale.
    request = estimator.reader_.request(estimator.posterior_, X, draws=DRAWS)
    predicted = predictive.predict(estimator.posterior_, request, y)
    rows["squared_error"], rows["log_score"] = (y - predicted.mean) ** 2, predicted.log_density
    distance = 2 * np.abs(estimator.pit(X, y) - 0.5)
    for level in LEVELS:
        rows[str(level)] = distance <= level
    # Every month has the same firms, so a mean over months is one over rows.
    monthly = rows.groupby("month").mean()
    training = monthly.index < panel.test["month"].min()
    found: Row = {}
    for part, months in (("train", monthly[training]), ("test", monthly[~training])):
        mean = months.mean()
        r2_parts = [months[name].to_numpy() for name in ("squared_error", "y", "y_square")]
        found |= {
            f"log_score_{part}": float(mean["log_score"]),
            f"log_score_{part}_se": mean_se(months["log_score"].to_numpy()),
            f"r2_{part}": float(1 - mean["squared_error"] / (mean["y_square"] - mean["y"] ** 2)),
            f"r2_{part}_se": r2_se(*r2_parts),
            f"months_{part}": [str(month) for month in months.index],
            f"log_scores_{part}": months["log_score"].round(6).tolist(),
            f"coverage_{part}": {
                str(level): months[str(level)].round(5).tolist() for level in LEVELS
            },
        }
    return found


def _facts(panel: StockPanel) -> Row:
    sizes = panel.group_sizes()
    return {
        "firms": len(panel.firms),
        "groups": len(sizes),
        "groups_of_one": int((sizes == 1).sum()),
        "dropped": panel.dropped["reason"].value_counts().to_dict(),
        "largest": {str(group): int(n) for group, n in sizes.head(LARGEST).items()},
    }


def _profiles(estimator: Any, panel: StockPanel, names: list[str]) -> list[Row]:
    """Lek profiles of the largest groups in percent, one entry per month and factor."""
    groups = list(panel.group_sizes().head(LARGEST).index)
    found = []
    for volatility, month in REFERENCES.items():
        reference = panel.train[panel.train["month"] == month].iloc[0][names]
        for name in names:
            curves = nghvi.interpret.lek_profile(
                estimator, name, groups, reference, draws=LEK_DRAWS
            )
            grid = panel.percent(name, curves[name].unique())
            curves[["mean", "lower", "upper"]] = panel.percent(
                RETURN, curves[["mean", "lower", "upper"]]
            )
            found.append(
                {"volatility": volatility, "month": month, "factor": name}
                | {"at": round(float(panel.percent(name, reference[name])), 4)}
                | {"grid": grid.round(4).tolist()}
                | {
                    end: {str(g): c[end].round(3).tolist() for g, c in curves.groupby("group")}
                    for end in ("mean", "lower", "upper")
                }
            )
    return found


def _premia(estimator: Any, panel: StockPanel, names: list[str]) -> Row:
    """Every group's coefficients in percent of return per month, and a percent of each factor."""
    draws = estimator.posterior_draws(1000)
    values = draws["coef"][:, None, :] + draws["effects"]
    scale = panel.moments["sd"][RETURN] / panel.moments["sd"][names].to_numpy()
    slopes = values[..., 1:] * scale
    centre = panel.moments["mean"][names].to_numpy()
    alpha = panel.percent(RETURN, values[..., 0]) - slopes @ centre
    found: Row = {"groups": [str(group) for group in estimator.groups_]}
    for name, drawn in (("alpha", alpha), *zip(names, np.moveaxis(slopes, -1, 0), strict=True)):
        mean, sd = drawn.mean(axis=0).round(5).tolist(), drawn.std(axis=0).round(5).tolist()
        found[name] = {"mean": mean, "sd": sd}
    return found


STUDY = Study(
    "finance", "asset pricing by industry", cells, run, tables, figures, describe, "--data PATH"
)
