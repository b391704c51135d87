"""A balanced panel of monthly returns with factors: aligned, grouped, split, standardised.

Standard errors of scores on it come from the circular block bootstrap over months. Returns of one
month share its shocks and months follow each other, so whole blocks of months are drawn with
replacement (Politis and Romano 1992), wrapping around at the end.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from nghvi.data.frame import DataError
from nghvi.paper.finance.files import Returns, is_factors, is_returns, read_factors, read_returns

FF3 = ("mkt_rf", "smb", "hml")
FF5 = ("mkt_rf", "smb5", "hml5", "rmw", "cma")
FACTORS = tuple(dict.fromkeys((*FF3, *FF5)))
RETURN, GROUP = "ret", "group"
SPLIT = "2015-01"
"""First month of the test data, as in the paper."""


@dataclasses.dataclass(frozen=True)
class StockPanel:
    """Returns of firms that were listed throughout.

    ``train``, ``test``: one row per firm and month with ``firm``, ``month``, ``group``, ``ret`` and
    the factors, standardised. ``moments``: ``mean`` and ``sd`` of the training data, in percent.
    ``firms``: ``sic`` and ``group`` of each. ``dropped``: ``reason`` and ``detail`` of each firm
    left out. ``repeated``: rows of the file that only repeated another one.
    """

    train: pd.DataFrame
    test: pd.DataFrame
    moments: pd.DataFrame
    firms: pd.DataFrame
    dropped: pd.DataFrame
    repeated: int
    source: str

    def percent(self, name: str, values: Any) -> Any:
        """Values of a column in percent."""
        return self.moments.at[name, "mean"] + self.moments.at[name, "sd"] * values

    def group_sizes(self) -> pd.Series:
        """Firms in each group, the largest group first."""
        counts = self.firms[GROUP].value_counts().rename_axis(GROUP)
        return counts.rename("firms").sort_index().sort_values(ascending=False, kind="stable")

    def fingerprint(self) -> str:
        """Eight digits that change with the data."""
        parts = [self.train, self.test]
        hashed = [pd.util.hash_pandas_object(part, index=False).to_numpy() for part in parts]
        return hashlib.sha256(b"".join(h.tobytes() for h in hashed)).hexdigest()[:8]


def load_panel(
    path: str | pathlib.Path,
    factors: str | pathlib.Path | Sequence[str | pathlib.Path] | None = None,
    *,
    start: str | None = None,
    end: str | None = None,
    split: str = SPLIT,
    min_firms: int = 1,
    excess: bool = False,
) -> StockPanel:
    """Read returns and factors into a balanced, standardised panel.

    ``path``: a CRSP extract or a merged panel (see ``finance.files``), CSV or Parquet, or a folder
    with one such file. ``factors``: one or more files of French's library, or plain tables; by
    default all such files in the same folder. ``start``, ``end``: the first and the last month; by
    default those of the returns. ``split``: the first month of the test data. ``min_firms``:
    smaller groups are merged with their neighbours, 2834 into 283x, 28xx, 2xxx. ``excess``: whether
    to subtract the risk-free rate from the returns.

    A firm belongs to the industry of its last SIC code in the training data.
    """
    path = pathlib.Path(path)
    returns_file = _returns_file(path) if path.is_dir() else path
    if factors is None:
        files = [p for p in _tables(returns_file.parent, ".csv") if is_factors(p)]
    else:
        given = [factors] if isinstance(factors, str | pathlib.Path) else factors
        files = [pathlib.Path(p) for p in given]
    returns = read_returns(returns_file)
    return make_panel(
        returns,
        read_factors(files),
        start=start,
        end=end,
        split=split,
        min_firms=min_firms,
        excess=excess,
        source=str(returns_file.name),
    )


def make_panel(
    returns: Returns,
    factors: pd.DataFrame,
    *,
    start: str | None = None,
    end: str | None = None,
    split: str = SPLIT,
    min_firms: int = 1,
    excess: bool = False,
    source: str,
) -> StockPanel:
    """The panel of returns and factors in percent; arguments as in :func:`load_panel`."""
    table = returns.table
    months = pd.period_range(start or table["month"].min(), end or table["month"].max(), freq="M")
    first_test = pd.Period(split, "M")
    if not months[0] < first_test <= months[-1]:
        raise DataError(
            f"split={split!r}: the returns run from {months[0]} to {months[-1]}; choose a month "
            "between them as the first of the test data."
        )
    table = table[table["month"].isin(months)]
    factors = _checked(factors, months, excess=excess)
    wide = table.pivot(index="firm", columns="month", values="ret").reindex(columns=months)
    empty = wide.columns[wide.isna().all()]
    if len(empty):
        raise DataError(
            f"{source}: no firm has a return in {empty[0]}; complete the file or choose start and "
            "end so that the gap is outside."
        )
    sic = _last_sic(table[table["month"] < first_test]).reindex(wide.index)
    dropped = _dropped(wide, table, sic)
    kept = wide.index.difference(dropped.index)
    if not len(kept):
        raise DataError(
            f"{source}: none of {len(wide)} firms has a return in all {len(months)} months and a "
            "SIC code; choose a shorter period with start and end."
        )
    firms = pd.DataFrame({"sic": sic[kept], GROUP: merge_groups(sic[kept], min_firms)})
    balanced = wide.loc[kept]
    if excess:
        balanced = balanced - factors["rf"]
    long = balanced.rename_axis(columns="month").reset_index().melt("firm", value_name=RETURN)
    long["month"] = long["month"].astype(months.dtype)
    long[GROUP] = long["firm"].map(firms[GROUP])
    long = long.join(factors[list(FACTORS)], on="month")
    columns = [RETURN, *FACTORS]
    training = long["month"] < first_test
    moments = long.loc[training, columns].agg(["mean", "std"]).T.set_axis(["mean", "sd"], axis=1)
    long[columns] = (long[columns] - moments["mean"]) / moments["sd"]
    train, test = (long[chosen].reset_index(drop=True) for chosen in (training, ~training))
    return StockPanel(train, test, moments, firms, dropped, returns.repeated, source)


def merge_groups(sic: pd.Series, min_firms: int) -> pd.Series:
    """SIC codes, the last digits of rare ones left out until their group is large enough."""
    label = sic.copy()
    for digits in (3, 2, 1, 0):
        rare = label.map(label.value_counts()) < min_firms
        label[rare] = label[rare].str[:digits].str.ljust(4, "x")
    return label


def _returns_file(folder: pathlib.Path) -> pathlib.Path:
    found = [p for p in _tables(folder, ".csv", ".parquet") if is_returns(p)]
    if len(found) != 1:
        shown = ", ".join(p.name for p in found) or "none"
        raise DataError(
            f"{folder}: one file of returns is needed (CRSP extract or merged panel), found "
            f"{shown}; give the file itself."
        )
    return found[0]


def _tables(folder: pathlib.Path, *suffixes: str) -> list[pathlib.Path]:
    return [p for p in sorted(folder.iterdir()) if p.suffix.lower() in suffixes]


def _checked(factors: pd.DataFrame, months: pd.PeriodIndex, *, excess: bool) -> pd.DataFrame:
    """The factors of these months, all there."""
    needed = [*FACTORS, *(["rf"] if excess else [])]
    for name in needed:
        if name not in factors.columns:
            raise DataError(
                f"no factor file has {name!r}; the three factors (mkt_rf, smb, hml) and the five "
                "(with rmw, cma; their smb and hml are smb5 and hml5) are two files of French's "
                "library: give both."
            )
        known = factors.index[factors[name].notna()]
        absent = months[~months.isin(known)]
        if len(absent):
            ends = f"it ends in {known.max()}" if absent[0] > known.max() else "it has a gap there"
            raise DataError(
                f"factor {name!r} is missing in {absent[0]}, {ends}, but the returns run from "
                f"{months[0]} to {months[-1]}; get a newer factor file or choose start and end."
            )
    return factors.loc[months, needed]


def _last_sic(table: pd.DataFrame) -> pd.Series:
    coded = table.dropna(subset="sic").sort_values("month", kind="stable")
    return coded.groupby("firm")["sic"].last()


def _dropped(wide: pd.DataFrame, table: pd.DataFrame, sic: pd.Series) -> pd.DataFrame:
    """Firms that are left out, each with the first reason that applies."""
    lacking = wide.isna()
    rows = table.groupby("firm").size().reindex(wide.index)
    found = pd.DataFrame(index=wide.index, columns=["reason", "detail"], dtype=object)
    number = lacking.sum(axis=1)
    first = lacking.idxmax(axis=1).astype(str)
    detail = number.astype(str) + f" of {wide.shape[1]} months without a return, the first " + first
    found.loc[sic.isna()] = ["no SIC code", "none in the training data"]
    for reason, chosen in (
        ("a return is missing", number > 0),
        ("not listed throughout", rows < wide.shape[1]),
    ):
        found.loc[chosen, "reason"], found.loc[chosen, "detail"] = reason, detail[chosen]
    return found.dropna()


FACTOR_SD = {
    "mkt_rf": 4.3,
    "smb": 2.3,
    "hml": 2.5,
    "smb5": 2.4,
    "hml5": 2.5,
    "rmw": 1.6,
    "cma": 1.3,
}
COEF = {"mkt_rf": 1.0, "smb": 0.5, "hml": 0.1}
EFFECTS_SD = {"mkt_rf": 0.35, "smb": 0.3, "hml": 0.4}
NOISE_SD, DF = 9.0, 5.0


def synthetic_panel(
    seed: int = 0,
    *,
    num_firms: int = 240,
    num_groups: int = 40,
    start: str = "2005-01",
    end: str = "2019-12",
    split: str = "2015-01",
) -> StockPanel:
    """Returns linear in three factors with coefficients by industry and Student-t noise.

    Group sizes are as unequal as those of industries. Five further factors are included but do not
    affect the returns; two of them are noisy copies of others.
    """
    rng = np.random.default_rng(seed)
    months = pd.period_range(start, end, freq="M")
    white = rng.normal(size=(len(months), len(FACTORS)))
    factors = pd.DataFrame(white, pd.PeriodIndex(months, name="month"), list(FACTORS))
    factors = factors * pd.Series(FACTOR_SD)
    for copy, of in (("smb5", "smb"), ("hml5", "hml")):
        factors[copy] = factors[of] + 0.1 * factors[copy]
    factors = factors.assign(mkt_rf=0.6 + factors["mkt_rf"], rf=0.1)
    codes = np.sort(rng.choice(np.arange(100, 9000), num_groups, replace=False))
    share = 1 / np.arange(1, num_groups + 1)
    extra = rng.choice(num_groups, num_firms - num_groups, p=share / share.sum())
    group = np.concatenate([np.arange(num_groups), extra])
    names = list(COEF)
    effects = rng.normal(size=(num_groups, len(names))) * list(EFFECTS_SD.values())
    slopes = np.array(list(COEF.values())) + effects[group]
    noise = NOISE_SD * rng.standard_t(DF, (num_firms, len(months))) / np.sqrt(DF / (DF - 2))
    returns = np.maximum(0.2 + slopes @ factors[names].to_numpy().T + noise, -99.0)
    table = pd.DataFrame(
        {
            "firm": np.repeat([f"F{i:04d}" for i in range(num_firms)], len(months)),
            "month": np.tile(months, num_firms),
            "ret": returns.ravel(),
            "sic": np.repeat([f"{codes[k]:04d}" for k in group], len(months)),
        }
    ).astype({"month": "period[M]"})
    return make_panel(Returns(table, 0), factors, split=split, source="synthetic")


BLOCK, DRAWS = 6, 2000


def block_bootstrap(
    monthly: Float[np.ndarray, "t c"],
    statistic: Callable[[Float[np.ndarray, "*s c"]], np.ndarray],
    *,
    block: int = BLOCK,
    draws: int = DRAWS,
    seed: int = 0,
) -> float:
    """Standard error of ``statistic(means)``, a smooth function of the means over months.

    ``monthly`` holds one row per month; ``statistic`` is called once with the means of all draws.
    """
    number = len(monthly)
    block = min(block, number)
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, number, (draws, -(-number // block)))
    chosen = (starts[..., None] + np.arange(block)).reshape(draws, -1)[:, :number] % number
    return float(np.std(statistic(monthly[chosen].mean(axis=1)), ddof=1))


def mean_se(monthly: Float[np.ndarray, " t"], **settings: int) -> float:
    """Standard error of a mean over months, such as a log score or a difference of two."""
    return block_bootstrap(monthly[:, None], lambda means: means[..., 0], **settings)


def r2_se(
    squared_error: Float[np.ndarray, " t"],
    y: Float[np.ndarray, " t"],
    y_square: Float[np.ndarray, " t"],
    **settings: int,
) -> float:
    """Standard error of R2 from monthly means of squared errors, of y and of its square."""

    def r2(means: np.ndarray) -> np.ndarray:
        return 1 - means[..., 0] / (means[..., 2] - means[..., 1] ** 2)

    return block_bootstrap(np.column_stack([squared_error, y, y_square]), r2, **settings)
