"""``nghvi predict``: predictions of a run for the rows of a table."""

import argparse
import pathlib
import sys
from typing import Any

import numpy as np
import pandas as pd

from nghvi.cli import rundir
from nghvi.cli.parts import Commands, UsageError, add_command, as_json, writing
from nghvi.cli.tables import check_cells, check_column, read_table
from nghvi.data.frame import encode_groups, read_labels
from nghvi.posterior.predictive import predictor_draws
from nghvi.storage.replace import replaced

DRAWS = 1000
EXAMPLES = """\
nghvi predict run new.csv -o predictions.csv
nghvi predict run new.csv --level 0.5 > predictions.csv"""


def add(commands: Commands) -> None:
    """The command's arguments."""
    parser = add_command(
        commands, "predict", run, "predict the rows of a CSV or Parquet file", EXAMPLES
    )
    parser.add_argument("run_directory", metavar="run", type=pathlib.Path, help="--out of a fit")
    parser.add_argument("data", type=pathlib.Path, help="table, .csv or .parquet")
    parser.add_argument("-o", "--out", type=pathlib.Path, help="CSV to write; otherwise printed")
    parser.add_argument("--level", type=float, default=0.9, help="probability of the interval")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument("--json", action="store_true", help="print the predictions as JSON")


def run(chosen: argparse.Namespace) -> int:
    """Write or print one line a row; exit code."""
    if chosen.out is not None and chosen.out.exists() and not chosen.force:
        raise UsageError(f"{chosen.out}: it exists; choose another -o, or --force to replace it.")
    if not 0 < chosen.level < 1:
        raise UsageError(f"--level {chosen.level}: give a probability between 0 and 1.")
    estimator = rundir.load(chosen.run_directory)
    rows = read_table(chosen.data)
    names = [str(name) for name in estimator.feature_names_in_]
    for name in names:
        check_column(chosen.data, rows, name, "an input of the model")
    check_cells(chosen.data, rows[names], [estimator.group])
    predicted = predictions(estimator, rows[names], chosen.level)
    if chosen.json:
        print(as_json(predicted.to_dict(orient="records")))
    if chosen.out is not None:
        with writing(chosen.out, "-o"), replaced(chosen.out) as file:
            file.write(predicted.to_csv(index=False).encode())
        if not chosen.json:
            print(f"wrote {len(predicted)} rows to {chosen.out}")
    elif not chosen.json:
        predicted.to_csv(sys.stdout, index=False)
    return 0


def predictions(estimator: Any, rows: pd.DataFrame, level: float) -> pd.DataFrame:
    """Mean and interval of every row's response, or of the second class's probability."""
    if hasattr(estimator, "classes_"):
        request = estimator._request(rows, "known", DRAWS, 0)
        drawn = predictor_draws(estimator.posterior_, request)
        lower, upper = np.quantile(drawn, [0.5 - level / 2, 0.5 + level / 2], axis=0)
        columns = {"class": estimator.predict(rows), "mean": estimator.predict_proba(rows)[:, 1]}
    else:
        lower, upper = estimator.predict_interval(rows, level=level)
        columns = {"mean": estimator.predict(rows)}
    columns |= {"lower": lower, "upper": upper}
    if estimator.group is not None:
        labels = read_labels(rows[estimator.group].to_numpy(), estimator.group)
        columns["group_known"] = encode_groups(labels, estimator.groups_) >= 0
    return pd.DataFrame(columns)
