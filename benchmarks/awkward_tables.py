"""Grouped tables with the awkwardness of real ones, for judging defaults that are already chosen.

Categories as text, missing values, skewed and nearly collinear inputs, inputs in very different
units, columns that are constant within groups, trends, a few large or many tiny groups, responses
with heavy tails. The truth has curves in some and lines in others. Bundled tables are those of
statsmodels and scikit-learn that no default was chosen on.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

Draw = np.random.Generator


def flats(rng: Draw, groups: int = 38, rows: int = 1500) -> pd.DataFrame:
    """Log prices of flats by district: text, heavy tails, gaps, outliers, districts of any size."""
    share = rng.lognormal(sigma=1.3, size=groups)
    group = np.repeat(
        np.arange(groups), 2 + rng.multinomial(rows - 2 * groups, share / share.sum())
    )
    kind = rng.choice(["whole", "room", "shared", "hotel"], rows, p=[0.55, 0.38, 0.05, 0.02])
    guests = 1 + rng.geometric(0.4, rows)
    beds = np.maximum(1, (guests * rng.uniform(0.3, 0.9, rows)).round())
    least = np.where(
        rng.random(rows) < 0.1, rng.choice([30.0, 90, 365], rows), rng.geometric(0.3, rows)
    )
    reviews = np.floor(rng.lognormal(2.0, 1.8, rows))
    monthly = np.where(reviews > 0, reviews / rng.uniform(5, 80, rows), np.nan)
    hosted = np.floor(1 + rng.pareto(1.1, rows)).clip(max=300)
    free = np.where(rng.random(rows) < 0.35, 0, rng.integers(1, 366, rows))
    centre = rng.normal(size=(groups, 2)) * [0.05, 0.08]
    place = centre[group] + rng.normal(size=(rows, 2)) * [0.008, 0.012]
    away = np.hypot(place[:, 0] * 111, place[:, 1] * 80)
    mean = 4.9 + 0.28 * np.log(guests) + 0.1 * beds - 0.035 * away
    mean += (
        pd.Series(kind).map({"whole": 0, "room": -0.65, "shared": -1.1, "hotel": 0.3}).to_numpy()
    )
    mean += -0.03 * np.log1p(reviews) + 0.05 * np.log(hosted) - 0.06 * np.log(least)
    mean += 0.0003 * free + 0.25 * rng.normal(size=groups)[group]
    noise = 0.33 * rng.standard_t(3.5, rows) * np.where(kind == "whole", 1, 0.8)
    return pd.DataFrame(
        dict(kind=kind, guests=guests, beds=beds, least=least, reviews=reviews, monthly=monthly)
        | dict(hosted=hosted, free=free, north=52.5 + place[:, 0], east=13.4 + place[:, 1])
        | dict(group=group, y=mean + noise)
    )


def prices(rng: Draw) -> pd.DataFrame:
    """The same in units of money, so that the response itself has a heavy tail."""
    table = flats(rng, groups=30, rows=1100)
    return table.assign(y=np.exp(table["y"]).round(2))


def persons(rng: Draw, groups: int = 500, years: int = 8) -> pd.DataFrame:
    """Log wages of persons: a trend, exactly collinear columns, most of them constant in time."""
    group, year = (
        np.repeat(np.arange(groups), years),
        np.tile(np.arange(1980, 1980 + years), groups),
    )
    ability = rng.normal(size=groups)
    school = (11.8 + 1.7 * (0.5 * ability + rng.normal(size=groups))).round().clip(5, 16)
    begun = (school + 6 + rng.integers(0, 4, groups)).clip(max=24)
    born = 1980 - 17 - rng.integers(0, 8, groups)
    origin = rng.choice(["a", "b", "c"], groups, p=[0.73, 0.12, 0.15])
    experience = (year - (born + begun)[group]).clip(0)
    work = rng.choice([f"w{i}" for i in range(1, 10)], len(group), p=rng.dirichlet(np.full(9, 3)))
    union = rng.random(len(group)) < 0.25
    married = year > (born + rng.integers(20, 34, groups))[group]
    hours = rng.normal(2200, 480, len(group)).clip(120).round()
    ill = rng.random(len(group)) < 0.02
    mean = 0.3 + 0.085 * school[group] + 0.07 * experience - 0.003 * experience**2
    mean += 0.012 * (year - 1980) + 0.1 * union + 0.08 * married - 0.14 * (origin == "b")[group]
    mean += pd.Series(work).map({f"w{i}": 0.05 * (i - 5) for i in range(1, 10)}).to_numpy() * 0.6
    mean += 0.28 * ability[group] - 0.00011 * (hours - 2200) - 0.1 * ill
    mean += (rng.normal(size=groups) * 0.035)[group] * (year - 1983)
    noise = 0.28 * rng.standard_t(3, len(group)) + (rng.random(len(group)) < 0.01) * -2.0
    return pd.DataFrame(
        dict(year=year, school=school[group], origin=origin[group], experience=experience)
        | dict(squared=experience**2, age=year - born[group], work=work, union=union)
        | dict(married=married, hours=hours, ill=ill, group=group, y=mean + noise)
    )


def tiny(rng: Draw, groups: int = 500) -> pd.DataFrame:
    """One to four rows per group, a curve in one input and a product of two others."""
    group = np.repeat(np.arange(groups), rng.integers(1, 5, groups))
    x = rng.normal(size=(len(group), 6))
    mean = np.sin(1.5 * x[:, 0]) + 0.6 * x[:, 1] * x[:, 2] + 0.3 * x[:, 3]
    y = mean + 0.7 * rng.normal(size=groups)[group] + 0.6 * rng.normal(size=len(group))
    return pd.DataFrame(x).add_prefix("x").assign(group=group, y=y)


def regions(rng: Draw, groups: int = 6, size: int = 330) -> pd.DataFrame:
    """Few large groups with slopes of their own, a saturating curve and a threshold."""
    group = np.repeat(np.arange(groups), size)
    x = rng.gamma(2.0, 1.0, size=(len(group), 5))
    slope = 0.4 * rng.normal(size=groups)[group]
    mean = (
        2 * (1 - np.exp(-x[:, 0])) + (0.5 + slope) * x[:, 1] + 0.8 * (x[:, 2] > 2) * (x[:, 3] > 1)
    )
    y = 100 + 20 * (mean + rng.normal(size=groups)[group] + 0.8 * rng.normal(size=len(group)))
    return pd.DataFrame(x).add_prefix("x").assign(group=group, y=y)


def units(rng: Draw, groups: int = 45, size: int = 20) -> pd.DataFrame:
    """Inputs of sizes 1e-6 to 1e7, two nearly equal pairs, a response near 1e6 with a bend."""
    group = np.repeat(np.arange(groups), size)
    z = rng.normal(size=(len(group), 4))
    x = pd.DataFrame({"micro": 1e-6 * (5 + z[:, 0]), "mega": 1e7 * np.exp(0.8 * z[:, 1])})
    x["twin"] = x["micro"] * 1e6 + 1e-3 * rng.normal(size=len(x))
    x["shift"], x["again"] = 1e4 + z[:, 2], 2e4 + 2 * z[:, 2] + 0.05 * rng.normal(size=len(x))
    x["rare"] = (rng.random(len(x)) < 0.03).astype(float)
    mean = z[:, 0] + np.abs(z[:, 2]) + 0.5 * z[:, 1] + 1.5 * x["rare"]
    y = mean + 0.8 * rng.normal(size=groups)[group] + 0.7 * rng.normal(size=len(x))
    return x.assign(group=group, y=1e6 + 3e4 * y)


def shops(rng: Draw, groups: int = 60, size: int = 18) -> pd.DataFrame:
    """Skewed positive responses, noise that grows with the mean, a category of 25 levels."""
    group, n = np.repeat(np.arange(groups), size), groups * size
    brand, day = rng.integers(0, 25, n), rng.choice(["mo", "tu", "we", "th", "fr", "sa", "su"], n)
    price, space = rng.lognormal(1.0, 0.7, n), rng.lognormal(4.0, 1.0, groups)[group]
    special = rng.random(n) < 0.2
    mean = 2 + 0.4 * np.log(space) - 0.6 * np.log(price) + 0.5 * special * (price > 3)
    mean += 0.3 * rng.normal(size=25)[brand] + 0.2 * np.isin(day, ["fr", "sa"])
    y = np.exp(mean + 0.3 * rng.normal(size=groups)[group]) * rng.gamma(3, 1 / 3, n)
    names = np.array([f"brand {i}" for i in range(25)])[brand]
    return pd.DataFrame(
        dict(brand=names, day=day, price=price, space=space, special=special, group=group, y=y)
    )


def plots(rng: Draw, groups: int = 12, size: int = 8) -> pd.DataFrame:
    """A field trial: three inputs, an optimum, ninety rows."""
    group = np.repeat(np.arange(groups), size)
    x = rng.uniform(0, 10, size=(len(group), 3))
    mean = 50 - 0.8 * (x[:, 0] - 5) ** 2 + 1.5 * x[:, 1]
    y = mean + 4 * rng.normal(size=groups)[group] + 3 * rng.normal(size=len(group))
    return pd.DataFrame(x).add_prefix("x").assign(group=group, y=y)


def births(rng: Draw, number: int = 90) -> pd.DataFrame:
    """Births per woman by country and year: one input, a strong trend, a curve per country."""
    from statsmodels.datasets import fertility

    table = fertility.load_pandas().data
    years = [name for name in table.columns if str(name).isdigit()]
    chosen = table.iloc[rng.permutation(len(table))[:number]]
    long = chosen.melt(id_vars="Country Name", value_vars=years, var_name="year", value_name="y")
    long = long.dropna().rename(columns={"Country Name": "group"})
    return long.assign(year=long["year"].astype(float))[lambda t: t["year"] % 3 == 0].reset_index(
        drop=True
    )


def voters(rng: Draw) -> pd.DataFrame:
    """Where voters place themselves, 1 to 7; groups are years of age."""
    from statsmodels.datasets import anes96

    table = anes96.load_pandas().data
    table = table.rename(columns={"selfLR": "y", "age": "group"}).drop(columns=["vote", "PID"])
    return table[table.groupby("group")["y"].transform("size") > 2].reset_index(drop=True)


def travel(rng: Draw) -> pd.DataFrame:
    """Logarithm of the time that 210 travellers need by four means of transport."""
    from statsmodels.datasets import modechoice

    table = modechoice.load_pandas().data
    x = table[["mode", "ttme", "invc", "hinc", "psize"]]
    mode = x["mode"].map({1: "air", 2: "train", 3: "bus", 4: "car"})
    return x.assign(mode=mode, group=table["individual"], y=np.log(table["invt"]))


def tumours(rng: Draw) -> pd.DataFrame:
    """Largest radius of tumours from 18 measurements, many nearly equal; groups by texture."""
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer(as_frame=True).frame
    kept = [c for c in table.columns if c.startswith("mean") or c.endswith("error")]
    group = pd.qcut(table["mean texture"], 25, labels=False)
    x = table[kept].drop(columns=["mean texture", "texture error"])
    return x.assign(group=group, y=table["worst area"])


TABLES: dict[str, Callable[[Draw], pd.DataFrame]] = {
    "flats": flats,
    "prices": prices,
    "persons": persons,
    "tiny": tiny,
    "regions": regions,
    "units": units,
    "shops": shops,
    "plots": plots,
    "births": births,
    "voters": voters,
    "travel": travel,
    "tumours": tumours,
}
