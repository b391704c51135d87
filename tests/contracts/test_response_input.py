"""Observations that a response refuses, each given by formula, by estimator and by command.

The message names the column, the rows and the remedy.
"""

import re

import numpy as np
import pandas as pd
import pytest

import nghvi
from nghvi.cli import main
from nghvi.responses import RESPONSES

GROUP = np.repeat(np.arange(6), 8)
RNG = np.random.default_rng(0)
X = RNG.normal(size=GROUP.size)
GOOD = pd.DataFrame(
    {
        "x": X,
        "g": GROUP.astype(str),
        "count": RNG.poisson(np.exp(1 + 0.3 * X)),
        "hours": 1.0,
        "hits": RNG.binomial(5, 0.5, X.size),
        "shots": 5,
        "share": RNG.uniform(0.1, 0.9, X.size),
        "days": RNG.gamma(3, 1, X.size),
        "level": np.clip(X, -1, 1),
        "low": -1.0,
        "high": 1.0,
        "grade": RNG.integers(1, 4, X.size),
        "score": X + RNG.normal(size=X.size),
        "precision": 1.5,
    }
)
KNOWN = {"hits": ["shots"], "level": ["low", "high"], "score": ["precision"]}
COUNTS = (
    "poisson",
    "negative-binomial",
    "zero-inflated-poisson",
    "zero-inflated-negative-binomial",
)
TRIALS = ("binomial", "binomial-probit", "beta-binomial")
ROWS = "in row 3, .* in row 7"
LEFT = {
    "count": ("count", {}),
    "hits": ("hits | trials(shots)", {"trials": "shots"}),
    "share": ("share", {}),
    "days": ("days", {}),
    "level": ("censored(level, low, high)", {"censored": ("low", "high")}),
    "grade": ("grade", {}),
    "score": ("score | weights(precision)", {"weights": "precision"}),
}
"""A response as a formula writes it, and what an estimator is told instead."""


def put(column, value):
    """Return the good rows with two of them replaced."""
    spoilt = GOOD.astype({column: float})
    spoilt.loc[[3, 7], column] = value
    return spoilt


CASES = [
    *((r, "count", put("count", -1), f"count holds -1 {ROWS}.*exposure=") for r in COUNTS),
    *((r, "count", put("count", 1.5), f"count holds 1.5 {ROWS}.*whole numbers") for r in COUNTS),
    *((r, "count", put("count", 1e9), rf"count holds 1e\+09 {ROWS}.*drop these") for r in COUNTS),
    *((r, "count", GOOD.assign(count=0), "every count in count is 0.*happened") for r in COUNTS),
    ("poisson", "count", put("count", 1e300), "column 'count' has values of size 1e.300"),
    *((r, "hits", put("hits", 6), r"hits holds 6 successes of 5 trials in row 3") for r in TRIALS),
    *((r, "hits", put("hits", -1), f"hits holds -1 {ROWS}.*trials=") for r in TRIALS),
    *((r, "hits", put("hits", 0.5), f"hits holds 0.5 {ROWS}.*trials=") for r in TRIALS),
    *((r, "hits", put("shots", 0), rf"trials\(shots\) holds 0 {ROWS}.*leave") for r in TRIALS),
    *((r, "hits", put("shots", 7.5), rf"trials\(shots\) holds 7.5 {ROWS}.*whole") for r in TRIALS),
    *((r, "hits", GOOD.assign(hits=0), "every trial of hits failed.*both") for r in TRIALS),
    *((r, "hits", GOOD.assign(hits=5), "every trial of hits succeeded.*both") for r in TRIALS),
    *(("beta", "share", put("share", v), f"share holds {v} {ROWS}.*0 or 1") for v in (0, 1)),
    ("beta", "share", put("share", 50), f"share holds 50 {ROWS}.*divide percentages by 100"),
    ("beta", "share", GOOD.assign(share=0.5), "the response share is constant"),
    ("beta", "share", GOOD.assign(share=0.5 + 1e-9 * X), "values of share differ by .*gaussian"),
    ("gamma", "days", GOOD.assign(days=5 + 1e-9 * X), "values of days differ by .*gaussian"),
    *(("gamma", "days", put("days", v), f"days holds {v} {ROWS}.*zeros out") for v in (0, -1)),
    ("gamma", "days", put("days", 1e-320), f"days holds 9.99989e-321 {ROWS}, .*smaller unit"),
    ("gamma", "days", GOOD.assign(days=2.0), "the response days is constant"),
    ("tobit", "level", put("level", 3), f"level holds 3 {ROWS}, beyond its bounds.*clip"),
    ("tobit", "level", put("low", 2), rf"lower\(low\) holds 2 {ROWS}.*upper\(high\): .*-inf and"),
    ("tobit", "level", GOOD.assign(low="none"), "column 'low' is not numeric.*convert it"),
    ("tobit", "level", GOOD.assign(level=1.0), "every row of level is censored.*probit"),
    ("interval", "level", put("level", 3), f"level holds 3 {ROWS}, outside its interval.*middle"),
    (
        "interval",
        "level",
        GOOD.assign(low=-np.inf, high=np.inf),
        "no row of level is known exactly.*give the ends",
    ),
    ("interval", "level", GOOD.assign(high=np.inf), "no row of level is known exactly.*probit"),
    ("interval", "level", put("low", 2), rf"lower\(low\) holds 2 {ROWS}.*smaller number first"),
    *(
        (response, column, put(known, np.nan), f"{known}.*(positions 3, 7|2 in all).*leave such")
        for response, column, known in [
            ("interval", "level", "low"),
            ("binomial", "hits", "shots"),
            ("weighted-gaussian", "score", "precision"),
            ("poisson", "count", "count"),
        ]
    ),
    ("binomial", "hits", GOOD.assign(shots="five"), "column 'shots' is not numeric.*convert it"),
    *(
        (
            "weighted-gaussian",
            "score",
            put("precision", v),
            rf"weights\(precision\) holds {v} {ROWS}",
        )
        for v in (0, -1)
    ),
    ("ordered-logit", "grade", GOOD.assign(grade=1), "grade has 1 class, .*at least two"),
    (
        "ordered-probit",
        "grade",
        GOOD.assign(grade=pd.Categorical(GOOD["grade"], [1, 2, 3, 4], ordered=True)),
        "(grade has no row of class 4.*|'grade' .* has 4 classes, .* only 3 .*1, 2, 3.*)merge",
    ),
    ("logit", "grade", GOOD.assign(grade=1), r"grade has 1 class \(1\).*exactly two"),
    ("probit", "grade", GOOD, r"has 3 classes.*ordered-logit"),
]


WAYS = [(*case, way) for case in CASES for way in ("formula", "estimator", "command")]


@pytest.mark.parametrize(("response", "column", "data", "message", "way"), WAYS)
def test_refused_with_column_rows_and_remedy(
    response, column, data, message, way, tmp_path, capsys
):
    left, settings = LEFT[column]
    kind = nghvi.MixedClassifier if RESPONSES[response].classes else nghvi.MixedRegressor
    known = KNOWN.get(column, [])
    if way == "command":
        # A CSV has no levels without rows.
        in_parquet = isinstance(data[column].dtype, pd.CategoricalDtype)
        table = tmp_path / ("rows.parquet" if in_parquet else "rows.csv")
        rows = data[["x", "g", *known, column]]
        if in_parquet:
            rows.to_parquet(table)
        else:
            rows.to_csv(table, index=False)
            # People look for the line of a file, of which the first has the names.
            message = message.replace("row 3", "line 5").replace("row 7", "line 9")
        given = [f"--{k}={v if isinstance(v, str) else ','.join(v)}" for k, v in settings.items()]
        where = ["--target", column, "--group", "g", "--out", str(tmp_path / "run"), "--quiet"]
        assert main(["fit", str(table), "--response", response, *given, *where]) == 2
        assert re.search(message, capsys.readouterr().err)
        return
    if way == "formula":
        model, given = kind(formula=f"{left} ~ x + (1 | g)", response=response), (data,)
    else:
        model = kind("g", response=response, **settings)
        given = (data[["x", "g", *known]], data[column])
    with pytest.raises(nghvi.InputError, match=message):
        model.fit(*given)


@pytest.mark.parametrize("hours", [0.0, -1.0])
def test_no_exposure_is_named_with_rows_and_remedy(hours):
    data = put("hours", hours)
    with pytest.raises(nghvi.DataError, match=r"log\(hours\) is not finite.*3, 7.*above 0"):
        nghvi.mixed("count ~ x + exposure(hours) + (1 | g)", data, response="poisson")
    model = nghvi.MixedRegressor("g", response="poisson", exposure="hours")
    with pytest.raises(nghvi.DataError, match=f"exposure='hours' holds .*{ROWS}.*above 0"):
        model.fit(data[["x", "g", "hours"]], data["count"])
