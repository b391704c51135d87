"""Does a network earn its place on grouped tables? The deep default and linear mixed models.

Every table is split into training rows, held-out rows of the same groups and whole groups that no
model has seen. One line of JSON per fit, so that an interrupted run continues where it stopped:
log scores by group, R2, RMSE, coverage of 90 % intervals, seconds on the clock and of CPU.
Differences are means over rows, with standard errors over groups, whose rows belong together.

Tables in ``CHOSEN_ON`` were looked at while defaults were chosen, those in ``JUDGED_ON`` were not.
Simulated tables are always there, as are those of scikit-learn and, if it is installed,
statsmodels; others are read from ``--data DIR``.

Names such as ``friedman:logit`` stand for a table with another response: y lies above its median or
not (``logit``, ``probit``), or is the mean of a count (``poisson``). For classes R2 is that of
the probability, and there are no intervals.

Run: python -m benchmarks.tables --data DIR [--tables radon,exam] [--splits 2] [--out FILE]
"""

import argparse
import json
import pathlib
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import norm
from sklearn.datasets import load_diabetes

import nghvi
from benchmarks import awkward_tables
from benchmarks.table_peers import PEERS
from nghvi.paper.studies.facts import about

ROOT = pathlib.Path(__file__).parent.parent
NEW_GROUPS, HELD_OUT = 0.2, 0.25
LEVEL = 0.9
MODELS: dict[str, dict] = {"linear": {}, "slopes": {"random": "all"}, "deep": {"hidden": (32, 16)}}
Simulated = Callable[[np.random.Generator], pd.DataFrame]


def _grouped(rng: np.random.Generator, groups: int, size: int, inputs: int) -> pd.DataFrame:
    x = pd.DataFrame(rng.uniform(size=(groups * size, inputs))).add_prefix("x")
    return x.assign(group=np.repeat(np.arange(groups), size))


def friedman(rng: np.random.Generator, groups: int = 30, size: int = 30) -> pd.DataFrame:
    """Friedman's first function of five of ten inputs, intercepts by group."""
    table = _grouped(rng, groups, size, 10)
    a, b, c, d, e = (table[f"x{j}"] for j in range(5))
    mean = 10 * np.sin(np.pi * a * b) + 20 * (c - 0.5) ** 2 + 10 * d + 5 * e
    effects = 2 * rng.normal(size=groups)
    return table.assign(y=mean + effects[table["group"]] + rng.normal(size=len(table)))


def network(rng: np.random.Generator, groups: int = 300, size: int = 6) -> pd.DataFrame:
    """The paper's process: random coefficients on the features of a network."""
    table = _grouped(rng, groups, size, 5)
    x = np.sqrt(12) * (table.filter(like="x").to_numpy() - 0.5)
    for width in (5, 5):
        w = rng.normal(size=(width, x.shape[1] + 1)) * np.sqrt(2 / x.shape[1])
        x = np.maximum(x @ w[:, 1:].T + w[:, 0], 0)
    h = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    coef = 1.5 * rng.normal(size=h.shape[1]) + 0.7 * rng.normal(size=(groups, h.shape[1]))
    y = np.sum(h * coef[table["group"]], axis=1) + rng.normal(size=len(x))
    return table.assign(y=y)


def slopes(rng: np.random.Generator, groups: int = 20, size: int = 20) -> pd.DataFrame:
    """A linear model with intercepts and slopes by group."""
    table = _grouped(rng, groups, size, 4)
    x = np.c_[np.ones(len(table)), table.filter(like="x")]
    coef = rng.normal(size=5) + rng.normal(size=(groups, 5)) * [0.7, 1.0, 0.5, 0.0, 0.0]
    return table.assign(y=np.sum(x * coef[table["group"]], axis=1) + rng.normal(size=len(x)))


def intercepts(rng: np.random.Generator, groups: int = 40, size: int = 12) -> pd.DataFrame:
    """A linear model with intercepts by group and a column that is constant within groups."""
    table = _grouped(rng, groups, size, 3)
    table["between"] = rng.normal(size=groups)[table["group"]]
    effects = 0.8 * rng.normal(size=groups)[table["group"]]
    mean = table["x0"] - 2 * table["x1"] + 0.5 * table["between"]
    return table.assign(y=mean + effects + rng.normal(size=len(table)))


def waves(rng: np.random.Generator, groups: int = 80, size: int = 15) -> pd.DataFrame:
    """A smooth curve and an interaction, intercepts and slopes by group, Student-t noise."""
    table = _grouped(rng, groups, size, 6)
    a, b, c = (table[f"x{j}"] for j in range(3))
    effects = rng.normal(size=(groups, 2))[table["group"]] * [0.5, 0.5]
    mean = 1.5 * np.sin(2 * np.pi * a) + 3 * (b - 0.5) * (c - 0.5) + c
    y = mean + effects[:, 0] + effects[:, 1] * c + 0.4 * rng.standard_t(5, len(table))
    return table.assign(y=y)


def steps(rng: np.random.Generator, groups: int = 60, size: int = 25) -> pd.DataFrame:
    """A jump and a threshold among linear terms, weak compared with the noise."""
    table = _grouped(rng, groups, size, 5)
    a, b, c = (table[f"x{j}"] for j in range(3))
    effects = 0.6 * rng.normal(size=groups)[table["group"]]
    mean = a + (b > 0.6) * 1.0 + np.maximum(c - 0.5, 0) * 2
    return table.assign(y=mean + effects + rng.normal(size=len(table)))


def rentals(rng: np.random.Generator, groups: int = 41, rows: int = 1561) -> pd.DataFrame:
    """Rents by district: heavy-tailed inputs, a category, a place that hardly varies within groups.

    Districts differ in size by a factor of a hundred, so that new groups are few and large. Inputs
    act through their logarithms, noise has heavy tails.
    """
    share = rng.lognormal(sigma=1.2, size=groups)
    extra = rng.multinomial(rows - 3 * groups, share / share.sum())
    group = np.repeat(np.arange(groups), 3 + extra)
    nights, reviews = rng.lognormal(1.0, 1.1, rows).round(), rng.negative_binomial(0.5, 0.02, rows)
    owned, free = rng.pareto(1.5, rows).round(), rng.integers(0, 366, rows)
    room = rng.choice(3, p=[0.5, 0.4, 0.1], size=rows)
    place = rng.normal(size=(groups, 2))[group] + 0.1 * rng.normal(size=(rows, 2))
    mean = 4.5 - 0.6 * (room == 1) - 0.9 * (room == 2) - 0.05 * np.log1p(nights)
    mean += 0.03 * np.log1p(owned) + 0.0004 * free - 0.04 * np.log1p(reviews) + 0.1 * place[:, 0]
    effects = rng.normal(size=(groups, 2))[group] * [0.2, 0.1]
    y = mean + effects[:, 0] + effects[:, 1] * (room == 1) + 0.35 * rng.standard_t(4, rows)
    columns = dict(nights=nights, reviews=reviews, owned=owned, free=free, group=group, y=y)
    columns |= dict(shared=room == 1, bed=room == 2, north=place[:, 0], east=place[:, 1])
    return pd.DataFrame(columns).astype(float)


def careers(rng: np.random.Generator, groups: int = 400, years: int = 8) -> pd.DataFrame:
    """Wages of persons over years: weak curvature, columns constant in time, AR(1) noise."""
    group, year = np.repeat(np.arange(groups), years), np.tile(np.arange(years), groups)
    school, minority = rng.integers(8, 17, groups)[group], rng.random(groups)[group] < 0.25
    experience = np.maximum(rng.integers(0, 12, groups)[group] + year, 0)
    union = (rng.normal(size=groups)[group] + 0.7 * rng.normal(size=len(group))) > 0.8
    married = rng.integers(-4, 12, groups)[group] < year
    hours = rng.normal(2200, 500, len(group)).clip(200) * rng.lognormal(sigma=0.1, size=len(group))
    noise = 0.25 * rng.standard_t(4, (groups, years))
    for t in range(1, years):
        noise[:, t] += 0.4 * noise[:, t - 1]
    mean = 0.5 + 0.09 * school + 0.1 * experience - 0.004 * experience**2 - 0.12 * minority
    mean += 0.08 * union + 0.05 * married - 0.00006 * (hours - 2200)
    effects = rng.normal(size=(groups, 2))[group] * [0.3, 0.04]
    y = mean + effects[:, 0] + effects[:, 1] * (year - 3.5) + noise.ravel()
    columns = dict(year=year, school=school, minority=minority, experience=experience)
    columns |= dict(union=union, married=married, hours=hours, group=group, y=y)
    return pd.DataFrame(columns).astype(float)


def diabetes(rng: np.random.Generator) -> pd.DataFrame:
    """Progression of diabetes; groups are deciles of age."""
    table = load_diabetes(as_frame=True).frame
    groups = pd.qcut(table["age"], 10, labels=False, duplicates="drop")
    return table.drop(columns="age").rename(columns={"target": "y"}).assign(group=groups)


def grunfeld(rng: np.random.Generator) -> pd.DataFrame:
    """Logarithm of the investment of eleven firms in twenty years."""
    from statsmodels.datasets import grunfeld as bundled

    table = bundled.load_pandas().data
    x = np.log(table[["value", "capital"]]).assign(year=table["year"])
    return x.assign(group=table["firm"], y=np.log(table["invest"]))


def fair(rng: np.random.Generator, rows: int = 1500) -> pd.DataFrame:
    """How women rate their marriage, some of 6,366; groups are occupations of both partners."""
    from statsmodels.datasets import fair as bundled

    table = bundled.load_pandas().data.iloc[rng.permutation(6366)[:rows]].reset_index(drop=True)
    group = table["occupation"].astype(str) + table["occupation_husb"].astype(str)
    table = table.drop(columns=["occupation", "occupation_husb"])
    return table.rename(columns={"rate_marriage": "y"}).assign(group=group)


def affairs(rng: np.random.Generator, rows: int = 2000) -> pd.DataFrame:
    """Whether women had affairs, some of 6,366; groups are occupations of both partners."""
    table = fair(rng, rows).rename(columns={"y": "rating"})
    return table.assign(y=(table.pop("affairs") > 0).astype(float))


def visits(rng: np.random.Generator, rows: int = 2500) -> pd.DataFrame:
    """Visits to doctors in a year, some of 20,190; groups are kinds of insurance."""
    from statsmodels.datasets import randhie as bundled

    table = bundled.load_pandas().data.iloc[rng.permutation(20190)[:rows]].reset_index(drop=True)
    plan = table[["lncoins", "idp", "fmde"]].round(1).astype(str)
    group = plan["lncoins"] + plan["idp"] + plan["fmde"]
    table = table.assign(group=group.astype("category").cat.codes)
    table = table.drop(columns=["lncoins", "idp", "fmde"]).rename(columns={"mdvis": "y"})
    return table[table.groupby("group")["y"].transform("size") > 2].reset_index(drop=True)


SIMULATED: dict[str, Simulated] = {
    "friedman": friedman,
    "network": network,
    "slopes": slopes,
    "intercepts": intercepts,
    "waves": waves,
    "steps": steps,
    "diabetes": diabetes,
    "rentals": rentals,
    "careers": careers,
    "grunfeld": grunfeld,
    "fair": fair,
    "affairs": affairs,
    "visits": visits,
    **awkward_tables.TABLES,
}
READ = {
    "radon": ("radon_mn", "county_idx", "log_radon", ("log_uppm", "floor_measure"), None),
    "exam": ("Exam", "school", "normexam", ("standLRT", "schavg", "sex", "schgend", "vr"), None),
    "insteval": ("InstEval", "d", "y", ("studage", "lectage", "service", "dept"), 3000),
    "sleepstudy": ("sleepstudy", "Subject", "Reaction", ("Days",), None),
    "orthodont": ("Orthodont", "Subject", "distance", ("age", "Sex"), None),
    "contraception": ("Contraception", "district", "use01", ("livch", "age", "urban"), None),
    "epil": ("epil", "subject", "y", ("trt", "lbase", "lage", "visit"), None),
}
"""File, group, response, inputs and the number of rows that are taken of a large file."""
RESPONSES = {
    "affairs": "logit",
    "contraception": "logit",
    "visits": "negative-binomial",
    "epil": "negative-binomial",
}
"""Responses of tables that have none in their name; others are Gaussian."""
CHOSEN_ON = ("radon", "friedman", "network", "slopes")
JUDGED_ON = (
    "exam",
    "insteval",
    "sleepstudy",
    "orthodont",
    "diabetes",
    "intercepts",
    "waves",
    "steps",
    "rentals",
    "careers",
    "grunfeld",
    "fair",
    *awkward_tables.TABLES,
)


def response_of(name: str) -> str:
    """The response by which a table is fitted."""
    return name.partition(":")[2] or RESPONSES.get(name, "gaussian")


def with_response(table: pd.DataFrame, response: str, rng: np.random.Generator) -> pd.DataFrame:
    """The table with classes or counts in place of y."""
    if response == "poisson":
        eta = 0.5 + 0.6 * (table["y"] - table["y"].mean()) / table["y"].std()
        return table.assign(y=rng.poisson(np.exp(eta)).astype(float))
    return table.assign(y=(table["y"] > table["y"].median()).astype(float))


def load(name: str, split: int, data: pathlib.Path | None) -> pd.DataFrame | None:
    """A table with columns ``y`` and ``group``; None where its file is not there."""
    plain, _, response = name.partition(":")
    rng = np.random.default_rng([split, *plain.encode()])
    if plain in SIMULATED:
        table = SIMULATED[plain](rng)
        return with_response(table, response, rng) if response else table
    file, group, y, inputs, number = READ[name]
    path = None if data is None else data / f"{file}.csv"
    if path is None or not path.exists():
        return None
    table = pd.read_csv(path, dtype={"service": str, "dept": str})
    if number is not None:
        groups = rng.permutation(table[group].unique())
        counts = table[group].value_counts().loc[groups].cumsum()
        table = table[table[group].isin(counts.index[counts <= number])]
    x = pd.get_dummies(table[list(inputs)], drop_first=True, dtype=float)
    return x.assign(group=table[group].astype(str), y=table[y].astype(float))


def divide(table: pd.DataFrame, split: int) -> dict[str, pd.DataFrame]:
    """Training rows, held-out rows of the same groups, and whole new groups."""
    rng = np.random.default_rng(split)
    groups = rng.permutation(table["group"].unique())
    new = table["group"].isin(groups[: max(2, round(NEW_GROUPS * len(groups)))])
    rest = table[~new]
    held = pd.Series(rng.uniform(size=len(rest)) < HELD_OUT, rest.index)
    train = rest[~held]
    train = train.loc[:, train.nunique() > 1]
    held &= rest["group"].isin(train["group"])
    parts = {"train": train, "known": rest[held], "new": table[new]}
    return {name: part[train.columns] for name, part in parts.items()}


class Scored(NamedTuple):
    """What a method says about held-out rows."""

    log_density: np.ndarray
    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def of_nghvi(model: str, train: pd.DataFrame, split: int, response: str) -> tuple[Callable, dict]:
    """A fit by default settings: what it predicts, and facts about it."""
    classes = response in ("logit", "probit")
    kind: Any = nghvi.MixedClassifier if classes else nghvi.MixedRegressor
    settings = MODELS[model] | ({"missing": "indicator"} if train.isna().any(axis=None) else {})
    estimator = kind("group", random_state=split, response=response, **settings)
    estimator.fit(train.drop(columns="y"), train["y"].to_numpy())

    def scored(table: pd.DataFrame, which: str) -> Scored:
        x, y = table.drop(columns="y"), table["y"].to_numpy()
        with warnings.catch_warnings():  # groups are new on purpose
            warnings.simplefilter("ignore")
            density = estimator.log_densities(x, y, draws=500)
            if classes:
                unknown = np.full(len(y), np.nan)
                mean = estimator.predict_proba(x, draws=500)[:, 1]
                return Scored(density, mean, unknown, unknown)
            ends = estimator.predict_interval(x, level=LEVEL, draws=500)
            return Scored(density, estimator.predict(x, draws=500), *ends)

    return scored, {"elbo": estimator.elbo_, "verdict": estimator.verdict_}


def of_peer(model: str, train: pd.DataFrame, split: int, response: str) -> tuple[Callable, dict]:
    """The same of another method, whose predictions are normal."""
    predict = PEERS[model](train, split)

    def scored(table: pd.DataFrame, which: str) -> Scored:
        predicted = norm(*predict(table, which))
        ends = predicted.interval(LEVEL)
        return Scored(predicted.logpdf(table["y"].to_numpy()), predicted.mean(), *ends)

    return scored, {}


def fit(name: str, split: int, model: str, table: pd.DataFrame) -> dict:
    """One fit and what it scores."""
    parts = divide(table, split)
    begun, cpu, train = time.perf_counter(), time.process_time(), parts["train"]
    scored, facts = (of_nghvi if model in MODELS else of_peer)(
        model, train, split, response_of(name)
    )
    row = {"table": name, "split": split, "model": model, "seconds": time.perf_counter() - begun}
    row |= {"cpu_seconds": time.process_time() - cpu, "rows": len(train)} | facts
    row["groups"] = int(train["group"].nunique())
    for part in ("known", "new"):
        y, group = parts[part]["y"].to_numpy(), parts[part]["group"].to_numpy()
        found = scored(parts[part], part)
        by_group = pd.Series(found.log_density).groupby(group).agg(["sum", "size"])
        error = np.mean((y - found.mean) ** 2)
        row[part] = {
            "log_score": float(found.log_density.mean()),
            "r2": float(1 - error / np.var(y)),
            "rmse": float(np.sqrt(error)),
            "coverage": nghvi.scores.coverage(y, found.lower, found.upper),
            "sums": by_group["sum"].tolist(),
            "sizes": by_group["size"].tolist(),
        }
    return row


def difference(deep: dict, linear: dict) -> tuple[float, float]:
    """Mean difference of the log scores and its standard error over groups."""
    size = np.array(deep["sizes"])
    gain = np.array(deep["sums"]) - np.array(linear["sums"])
    mean = gain.sum() / size.sum()
    left = gain - mean * size
    return float(mean), float(np.sqrt(np.sum(left**2) * len(size) / (len(size) - 1)) / size.sum())


def line(rows: dict[tuple, dict], table: str, split: int, model: str) -> str:
    """One comparison with the linear model as a row of a table."""
    deep, linear = rows[table, split, model], rows[table, split, "linear"]
    cells = [f"{table} ({split})", model]
    for part in ("known", "new"):
        gain, error = difference(deep[part], linear[part])
        mark = "  <" if gain < -error - 1e-3 else ""
        cells.append(f"{gain:+.3f} ({error:.3f}){mark}")
        cells.append(" / ".join(f"{each[part]['r2']:.3f}" for each in (deep, linear)))
        cells.append(" / ".join(f"{each[part]['coverage']:.2f}" for each in (deep, linear)))
    cells.append(" / ".join(f"{each.get('elbo', np.nan):.0f}" for each in (deep, linear)))
    seconds = (each.get("cpu_seconds", each["seconds"]) for each in (deep, linear))
    cells.append(" / ".join(f"{each:.0f}" for each in seconds))
    return " | ".join([*cells, deep.get("verdict", "")[:60]])


def totals(rows: dict[tuple, dict], model: str = "deep") -> list[str]:
    """How often the network was worse than a linear model, and how often ahead of others."""
    said = []
    for other in (*MODELS, *PEERS):
        pairs = [
            (row[part], rows[table, split, other][part])
            for (table, split, name), row in rows.items()
            if name == model != other and (table, split, other) in rows
            for part in ("known", "new")
        ]
        if pairs:
            gains = np.array([difference(*pair) for pair in pairs])
            worse = int(np.sum(gains[:, 0] < -gains[:, 1] - 1e-3))
            ahead, level = int(np.sum(gains[:, 0] > 1e-3)), int(np.sum(abs(gains[:, 0]) <= 1e-3))
            said.append(
                f"{model} and {other}: {len(pairs)} comparisons, ahead in {ahead}, level in "
                f"{level}, worse by more than a standard error in {worse}; mean gain "
                f"{gains[:, 0].mean():+.3f}"
            )
    return said


HEAD = (
    "table (split) | model | log score, known groups (se) | R2 deep / linear | coverage | "
    "log score, new groups (se) | R2 | coverage | ELBO | seconds | verdict"
)


def main() -> int:
    """Fit what is missing, and print every comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--tables", default=",".join((*CHOSEN_ON, *JUDGED_ON)))
    parser.add_argument("--models", default="linear,deep")
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument(
        "--out", type=pathlib.Path, default=ROOT / "benchmarks/results/tables.jsonl"
    )
    chosen = parser.parse_args()
    rows: dict[tuple, dict] = {}
    if chosen.out.exists():
        for text in chosen.out.read_text().splitlines():
            row = json.loads(text)
            rows[row["table"], row["split"], row["model"]] = row
    print(HEAD, flush=True)
    for name in chosen.tables.split(","):
        for split in range(1, chosen.splits + 1):
            table = load(name, split, chosen.data)
            if table is None:
                print(f"{name}: no file (--data)")
                break
            for model in chosen.models.split(","):
                if (name, split, model) not in rows:
                    row = fit(name, split, model, table)
                    rows[name, split, model] = row
                    with chosen.out.open("a") as file:
                        file.write(json.dumps(row | {"about": about()}) + "\n")
                if model != "linear":
                    print(line(rows, name, split, model), flush=True)
    print(*totals(rows), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
