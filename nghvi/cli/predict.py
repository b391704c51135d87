"""``nghvi predict``: predictions of a run for the rows of a table."""

import argparse
import pathlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from nghvi.cli import UsageError, add_run, as_json, rundir, tell, writing
from nghvi.cli.table_files import (
    PARQUET,
    Csv,
    add_arguments,
    named_as_in,
    read_checked,
    read_parts,
)
from nghvi.data.labels import encode_groups
from nghvi.posterior.predictive import predictor_draws
from nghvi.storage.file import place_of, replaced

if TYPE_CHECKING:
    from nghvi.estimators._base import MixedEstimator

DRAWS = 1000
ROWS_AT_ONCE = 20_000
EXAMPLES = """\
nghvi predict run new.csv -o predictions.csv
nghvi predict run new.csv --level 0.5 > predictions.csv
nghvi predict run new.parquet -o predictions.parquet"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    tell(parser, run, EXAMPLES)
    add_run(parser)
    parser.add_argument(
        "data", type=pathlib.Path, help="a .csv or .parquet table, or a folder of Parquet files"
    )
    parser.add_argument(
        "-o",
        "--out",
        type=pathlib.Path,
        help="a .csv file to write, or a .parquet file, for which Parquet is read a few rows at a "
        "time; by default CSV is printed",
    )
    parser.add_argument("--level", type=float, default=0.9, help="probability of the interval")
    add_arguments(parser)
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument("--json", action="store_true", help="print the predictions as JSON")


def run(chosen: argparse.Namespace) -> int:
    """Write or print one line per row; return the exit code."""
    if chosen.out is not None and chosen.out.exists() and not chosen.force:
        raise UsageError(
            f"{chosen.out}: the file exists already; choose another -o, or --force to replace it."
        )
    if not 0 < chosen.level < 1:
        raise UsageError(f"--level {chosen.level}: give a probability between 0 and 1.")
    to_parquet = chosen.out is not None and chosen.out.suffix.lower() in PARQUET
    if chosen.data.is_dir() and not to_parquet:
        raise UsageError(
            f"{chosen.data}: predictions for a folder are written as Parquet; give -o *.parquet."
        )
    estimator = rundir.load(chosen.run_directory)
    names = [str(name) for name in estimator.feature_names_in_]
    if to_parquet:
        return _to_parquet(chosen, estimator, names)
    predicted = _predicted(chosen, estimator, chosen.data, _complete(chosen, estimator, names))
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


def _to_parquet(chosen: argparse.Namespace, estimator: "MixedEstimator", names: list[str]) -> int:
    """Write predictions while rows are read, in the same order; return the exit code."""
    parts: Iterator[tuple[pathlib.Path, pd.DataFrame]]
    if chosen.data.is_dir() or chosen.data.suffix.lower() in PARQUET:
        labels, bounds = estimator.group_columns_, estimator.reader_.bounds
        may_lack = estimator.reader_.may_lack
        read = read_parts(
            chosen.data, names, labels, ROWS_AT_ONCE, chosen.missing, bounds, may_lack
        )
        parts = (
            (file, rows.set_index(rows.index + before)) for file, before, rows in read if len(rows)
        )
    else:
        parts = iter([(chosen.data, _complete(chosen, estimator, names))])
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    with writing(chosen.out, "-o"), replaced(place_of(chosen.out)) as file:
        for data, rows in parts:
            table = _predicted(chosen, estimator, data, rows)
            written = pa.Table.from_pandas(table, preserve_index=False)
            writer = writer or pq.ParquetWriter(file, written.schema)
            writer.write_table(written)
        if writer is None:
            raise UsageError(f"{chosen.data}: the table has column names but no rows.")
        writer.close()
    return 0


def _complete(
    chosen: argparse.Namespace, estimator: "MixedEstimator", names: list[str]
) -> pd.DataFrame:
    form = Csv.of(vars(chosen))
    return read_checked(
        chosen.data, form, names, "an input of the model", estimator, chosen.missing
    )


def _predicted(
    chosen: argparse.Namespace, estimator: "MixedEstimator", data: pathlib.Path, rows: pd.DataFrame
) -> pd.DataFrame:
    """Return predictions, with the number of their row in the table if some may be left out.

    ``data``: the file that the rows are from.
    """
    with named_as_in(data, rows):
        predicted = predictions(estimator, rows, chosen.level)
    if chosen.missing == "drop":
        predicted.insert(0, "row", rows.index.to_numpy() + 1)
    return predicted


def predictions(estimator: "MixedEstimator", rows: pd.DataFrame, level: float) -> pd.DataFrame:
    """Return mean and interval of every row's response, or of the second class's probability.

    For more than two classes it is the probability of each.
    """
    response = estimator.posterior_.model.response
    if response.classes and not response.support.two_valued:
        probability = estimator.predict_proba(rows)
        columns = {"class": estimator.classes_[probability.argmax(axis=1)]}
        columns |= {
            f"p[{label}]": p for label, p in zip(estimator.classes_, probability.T, strict=True)
        }
        return pd.DataFrame(_with_known_groups(estimator, rows, columns))
    if response.support.two_valued:
        request = estimator.reader_.request(estimator.posterior_, rows, draws=DRAWS)
        drawn = predictor_draws(estimator.posterior_, request)
        lower, upper = np.quantile(drawn, [0.5 - level / 2, 0.5 + level / 2], axis=0)
        columns = {"class": estimator.predict(rows), "mean": estimator.predict_proba(rows)[:, 1]}
    else:
        lower, upper = estimator.predict_interval(rows, level=level)
        columns = {"mean": estimator.predict(rows)}
    columns |= {"lower": lower, "upper": upper}
    return pd.DataFrame(_with_known_groups(estimator, rows, columns))


def _with_known_groups(estimator: "MixedEstimator", rows: pd.DataFrame, columns: dict) -> dict:
    labels, groups = estimator.reader_.table(rows).group, estimator.groups_
    if labels is None:
        return columns
    named = groups if isinstance(groups, dict) else {"group": groups}
    given = labels if isinstance(labels, tuple) else (labels,)
    each = zip(named.items(), given, strict=True)
    return columns | {
        f"{name}_known": encode_groups(own, known) >= 0 for (name, known), own in each
    }
