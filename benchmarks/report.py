"""Rows to tables. Only reads what the run has recorded."""

from collections.abc import Iterable, Sequence

from benchmarks.methods import METHODS

BASE = next(iter(METHODS))
"""The method the others' times are divided by."""

HEADER = (
    ("method", "<"),
    ("cold s", ">"),
    ("warm s", ">"),
    ("summary s", ">"),
    ("cold ratio", ">"),
    ("warm ratio", ">"),
    ("mean error", ">"),
    ("sd ratio coef", ">"),
    ("sd ratio variances", ">"),
    ("remark", "<"),
)

LEGEND = (
    f"ratios: time of the method / time of {BASE}. mean error: largest |mean - reference mean| in "
    "reference sds.\nsd ratio: smallest and largest sd / reference sd. reference: long Gibbs run. "
    "-: the method has none."
)


def add_ratios(rows: Sequence[dict]) -> None:
    """Each row's times divided by those of the base method on the same problem."""
    base = {r["problem"]: r for r in rows if r["method"] == BASE}
    for row in rows:
        for kind in ("cold", "warm"):
            key = f"{kind}_seconds"
            own, other = row.get(key), base.get(row["problem"], {}).get(key)
            row[f"{kind}_ratio"] = own / other if own and other else None


def table(rows: Sequence[dict]) -> str:
    """One problem's rows as text."""
    cells = [[title for title, _ in HEADER], *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEADER))]
    lines = [
        "  ".join(
            f"{text:{align}{width}}"
            for text, (_, align), width in zip(line, HEADER, widths, strict=True)
        ).rstrip()
        for line in cells
    ]
    lines.insert(1, "-" * max(len(line) for line in lines[:1]))
    return "\n".join([f"\n{rows[0]['problem']}", *lines, LEGEND])


def _cells(row: dict) -> list[str]:
    compared = row.get("comparison", {})
    status = "" if row["status"] == "ok" else f"{row['status'].upper()}: "
    verdict = row.get("facts", {}).get("converged")
    doubt = " (not converged)" if verdict is False else ""
    return [
        row["method"],
        number(row.get("cold_seconds"), ".3g"),
        number(row.get("warm_seconds"), ".3g"),
        number(row.get("summary_seconds"), ".2g"),
        number(row.get("cold_ratio"), ".3g"),
        number(row.get("warm_ratio"), ".3g"),
        number(compared.get("mean_error"), ".2f"),
        number_range(compared.get("sd_ratio_coef")),
        number_range(compared.get("sd_ratio_variances")),
        f"{status}{row['remark']}{doubt}",
    ]


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def number_range(values: list[float] | None) -> str:
    return "-" if values is None else f"{values[0]:.2f} .. {values[1]:.2f}"


def span(values: Iterable[float], form: str = ".3f", joint: str = " to ") -> str:
    """The smallest and the largest."""
    held = list(values)
    return f"{min(held):{form}}{joint}{max(held):{form}}"
