"""A made-up panel with the structure of the real one: for tests and for trying things out."""

import numpy as np
import pandas as pd

from nghvi.paper.finance.panel import FACTORS, StockPanel, make_panel
from nghvi.paper.finance.returns import Returns

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

    Group sizes are unequal as those of industries are; five further factors are given but do
    not enter the returns, apart from the two that copy others with error.
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
