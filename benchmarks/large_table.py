"""A table too large to hold: rows of many groups in no order, written to Parquet bit by bit.

    y = 2 max(x0 + x1, 0) - x2 x3 + (a_k + b_k max(x0, 0)) + noise,   a_k, b_k ~ N(0, 0.5^2)

Run: python -m benchmarks.large_table big.parquet [--groups 1000000] [--rows 20000000]
"""

import argparse
import pathlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

INPUTS = tuple(f"x{j}" for j in range(6))
AT_ONCE = 500_000


def bits(num_groups: int, num_rows: int, seed: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Columns of some rows at a time; the first rows visit every group once."""
    rng = np.random.default_rng(seed)
    effects = 0.5 * rng.normal(size=(2, num_groups))
    first = rng.permutation(num_groups)
    for start in range(0, num_rows, AT_ONCE):
        number = min(AT_ONCE, num_rows - start)
        own = first[start : start + number]
        group = np.concatenate([own, rng.integers(0, num_groups, number - len(own))])
        x = rng.normal(size=(len(INPUTS), number))
        y = 2 * np.maximum(x[0] + x[1], 0) - x[2] * x[3] + effects[0, group]
        y += effects[1, group] * np.maximum(x[0], 0) + rng.normal(size=number)
        yield {"group": group, **dict(zip(INPUTS, x, strict=True)), "y": y}


def write(path: pathlib.Path, num_groups: int, num_rows: int, seed: int = 0) -> None:
    """The table in one file."""
    writer = None
    for columns in bits(num_groups, num_rows, seed):
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer:
        writer.close()


def main() -> int:
    """Write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--groups", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    write(chosen.path, chosen.groups, chosen.rows, chosen.seed)
    print(f"{chosen.path}: {chosen.path.stat().st_size / 2**30:.2f} GB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
