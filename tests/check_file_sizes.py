"""Fail if a source file has outgrown what a reader can hold: 450 lines."""

import pathlib
import sys

LIMIT = 450

root = pathlib.Path(__file__).parent.parent
long = [
    (path.relative_to(root), count)
    for folder in ("nghvi", "benchmarks", "tests")
    for path in sorted((root / folder).rglob("*.py"))
    if (count := len(path.read_text().splitlines())) > LIMIT
]
for path, count in long:
    print(f"{path}: {count} lines, the limit is {LIMIT}: split it")
sys.exit(bool(long))
