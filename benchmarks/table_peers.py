"""Other methods for grouped tables: boosted trees, trees with random effects, a plain network.

LightGBM and the network have the group among their inputs, as a category; their predictive
distribution is normal, with the sd of residuals in folds of rows for known groups and in folds of
whole groups for new ones. Trees with random effects (GPBoost) know theirs. Rounds are chosen by
early stopping in the same folds of rows, the rest of the settings by a small grid.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GroupKFold, KFold
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

FOLDS, ROUNDS, PATIENCE = 4, 2000, 30
TREES = {"learning_rate": 0.05, "min_data_in_leaf": 10, "verbose": -1, "num_threads": 1}
LEAVES = (4, 8, 31)

Predict = Callable[[pd.DataFrame, str], tuple[np.ndarray, np.ndarray]]
"""Mean and sd of the response in rows of "known" or "new" groups."""


def _inputs(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns=["y", "group"], errors="ignore")


def _rows(number: int, seed: int) -> list:
    return list(KFold(FOLDS, shuffle=True, random_state=seed).split(np.zeros(number)))


def _with_residual_sds(
    train: pd.DataFrame, seed: int, fitted: Callable[[pd.DataFrame], Any]
) -> Predict:
    """A method that predicts means, with its residuals' sds in folds."""
    groups = train["group"].to_numpy()
    folds = {"known": _rows(len(train), seed)}
    folds["new"] = list(GroupKFold(FOLDS).split(groups, groups=groups))
    sds = {}
    for which, pairs in folds.items():
        errors = []
        for inside, outside in pairs:
            held_out = train.iloc[outside]
            errors.append(fitted(train.iloc[inside])(held_out) - held_out["y"].to_numpy())
        sds[which] = np.sqrt(np.mean(np.concatenate(errors) ** 2))
    whole = fitted(train)

    def predict(table: pd.DataFrame, which: str) -> tuple[np.ndarray, np.ndarray]:
        return whole(table), np.full(len(table), sds[which])

    return predict


def lightgbm(train: pd.DataFrame, seed: int) -> Predict:
    """Gradient boosted trees with the group as a category."""
    import lightgbm as lgb

    levels = np.unique(train["group"])

    def columns(table: pd.DataFrame) -> pd.DataFrame:
        return _inputs(table).assign(group=pd.Categorical(table["group"], categories=levels))

    def data(table: pd.DataFrame) -> Any:
        return lgb.Dataset(columns(table), table["y"], free_raw_data=False)

    def settings(leaves: int) -> dict:
        return {**TREES, "objective": "regression", "num_leaves": leaves, "seed": seed}

    found = []
    for leaves in LEAVES:
        stopping = lgb.early_stopping(PATIENCE, verbose=False)
        folds = _rows(len(train), seed)
        scores = lgb.cv(settings(leaves), data(train), ROUNDS, folds=folds, callbacks=[stopping])
        losses = scores["valid l2-mean"]
        found.append((losses[-1], leaves, len(losses)))
    _, leaves, rounds = min(found)

    def fitted(table: pd.DataFrame) -> Any:
        trees = lgb.train(settings(leaves), data(table), rounds)
        return lambda other: trees.predict(columns(other))

    return _with_residual_sds(train, seed, fitted)


def gpboost(train: pd.DataFrame, seed: int) -> Predict:
    """Boosted trees and random intercepts."""
    import gpboost as gpb

    centre, scale = train["y"].mean(), train["y"].std()
    data = gpb.Dataset(_inputs(train).to_numpy(float), ((train["y"] - centre) / scale).to_numpy())
    effects = gpb.GPModel(group_data=train["group"].to_numpy(), likelihood="gaussian")
    tuned = gpb.grid_search_tune_parameters(
        param_grid={"num_leaves": list(LEAVES)},
        params={**TREES, "max_depth": -1},
        train_set=data,
        gp_model=effects,
        folds=_rows(len(train), seed),
        num_boost_round=ROUNDS // 4,
        early_stopping_rounds=PATIENCE,
        metric="test_neg_log_likelihood",
        verbose_eval=0,
        seed=seed,
    )
    leaves = int(tuned["best_params"]["num_leaves"])
    trees = gpb.train(
        params={**TREES, "max_depth": -1, "num_leaves": leaves},
        train_set=data,
        gp_model=effects,
        num_boost_round=int(tuned["best_iter"]),
    )

    def predict(table: pd.DataFrame, which: str) -> tuple[np.ndarray, np.ndarray]:
        found = trees.predict(
            data=_inputs(table).to_numpy(float),
            group_data_pred=table["group"].to_numpy(),
            predict_var=True,
            pred_latent=False,
        )
        return centre + scale * found["response_mean"], scale * np.sqrt(found["response_var"])

    return predict


def mlp(train: pd.DataFrame, seed: int) -> Predict:
    """A plain network (32, 16) with a weight per group in its first layer, stopped early."""

    def fitted(table: pd.DataFrame) -> Any:
        encoded = make_column_transformer(
            (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["group"]),
            remainder=StandardScaler(),
        )
        network = MLPRegressor(
            hidden_layer_sizes=(32, 16), early_stopping=True, max_iter=1000, random_state=seed
        )
        centre, scale = table["y"].mean(), table["y"].std()
        whole = make_pipeline(encoded, network)
        whole.fit(table.drop(columns="y"), (table["y"] - centre) / scale)
        return lambda other: centre + scale * whole.predict(other[table.columns.drop("y")])

    return _with_residual_sds(train, seed, fitted)


PEERS: dict[str, Callable[[pd.DataFrame, int], Predict]] = {
    "lightgbm": lightgbm,
    "gpboost": gpboost,
    "mlp": mlp,
}
