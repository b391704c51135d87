"""From what a case did to one of the outcomes, and the oracle of a linear mixed model."""

import traceback
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
from sklearn.exceptions import NotFittedError

import nghvi

OUTCOMES = (
    "right",
    "warning",
    "clear error",
    "wrong",
    "raw traceback",
    "silent non-finite",
    "hang",
)
BAD = OUTCOMES[3:]
FIT, REFUSE, ANY = "fit", "refuse", "any"
"""What a case expects."""
AWAY, RATIO = 0.5, 2.0
"""How far a posterior mean may be from the oracle, in posterior sds, and how far the sds apart:
bounds for gross errors, since priors and the uncertainty of variances make small differences."""


class Checked(NamedTuple):
    """What a case computed."""

    numbers: dict[str, np.ndarray]
    """Have to be finite."""
    problems: list[str]
    """Where the result is not what it should be."""
    admitted: bool = False
    """Whether the verdict says that the result is not to be trusted."""
    refused: bool = False
    """Whether the program refused its input as it should: exit code 2 and one line."""


class Case(NamedTuple):
    """Something to try."""

    name: str
    run: Callable[[], Checked]
    expects: str = ANY
    described: str = ""


class Found(NamedTuple):
    """How it went."""

    case: str
    outcome: str
    said: str
    described: str


def judge(case: Case) -> Found:
    """Run a case in this process."""

    def found(outcome: str, said: object) -> Found:
        return Found(case.name, outcome, " ".join(str(said).split())[:600], case.described)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            checked = case.run()
        except (nghvi.InputError, NotFittedError) as error:
            said = f"{type(error).__name__}: {error}"
            if case.expects == FIT:
                return found("wrong", f"good input was refused: {said}")
            return found("clear error", said) if len(str(error)) > 15 else found("wrong", said)
        except (Exception, SystemExit) as error:
            lines = traceback.format_exc().splitlines()
            places = [line.strip() for line in lines if line.lstrip().startswith("File")]
            return found("raw traceback", f"{type(error).__name__}: {error} at {places[-3:]}")
    own = [w for w in seen if issubclass(w.category, UserWarning)]
    said = "; ".join(str(w.message) for w in own)
    if checked.refused:
        return found("wrong" if case.expects == FIT else "clear error", "exit code 2")
    bad = [name for name, values in checked.numbers.items() if not np.isfinite(values).all()]
    warned = bool(own) or checked.admitted
    if bad and not warned:
        return found("silent non-finite", f"{', '.join(bad)} not finite")
    if checked.problems and not checked.admitted:
        return found("wrong", "; ".join(checked.problems))
    if case.expects == REFUSE:
        return found("wrong", "bad input was accepted")
    return found("warning" if warned else "right", said)


def fit_checked(model: Any, X: Any, truth: "Oracle | None" = None) -> Checked:
    """What a fitted model says, compared with an oracle where there is one."""
    table = model.summary()
    numbers = {"summary": table.to_numpy(float), "elbo": np.array(model.elbo_)}
    numbers["predictions"] = np.asarray(model.predict(X), float)
    admitted = not model.converged_
    if admitted and not model.verdict_:
        return Checked(numbers, ["not converged, and no verdict says so"])
    return Checked(numbers, [] if truth is None else truth.problems(table), admitted)


class Oracle(NamedTuple):
    """Coefficients by restricted maximum likelihood, with their standard errors."""

    names: tuple[str, ...]
    coef: np.ndarray
    error: np.ndarray

    @staticmethod
    def of(x: np.ndarray, y: np.ndarray, group: np.ndarray, names: tuple[str, ...]) -> "Oracle":
        """Random intercepts; columns are scaled first, so that no scale is out of reach."""
        scale_x = np.maximum(np.abs(x - x.mean(0)).max(0), np.finfo(float).tiny)
        scale_y = max(np.abs(y - y.mean()).max(), np.finfo(float).tiny)
        design = np.column_stack([np.ones(len(y)), (x - x.mean(0)) / scale_x])
        response = (y - y.mean()) / scale_y
        _, code = np.unique(group, return_inverse=True)
        same = code[:, None] == code

        def solved(log_ratio: float) -> tuple[float, np.ndarray, np.ndarray]:
            root = np.linalg.cholesky(np.eye(len(y)) + np.exp(log_ratio) * same)
            a, b = np.linalg.solve(root, design), np.linalg.solve(root, response)
            gram = np.linalg.inv(a.T @ a)
            coef = gram @ (a.T @ b)
            free = len(y) - design.shape[1]
            variance = float(np.sum((b - a @ coef) ** 2)) / free
            value = free * np.log(max(variance, 1e-300)) + 2 * np.log(np.diag(root)).sum()
            return value - np.linalg.slogdet(gram)[1], coef, np.sqrt(variance * np.diag(gram))

        best = scipy.optimize.minimize_scalar(
            lambda r: solved(r)[0], bounds=(-8, 8), method="bounded"
        )
        _, coef, error = solved(best.x)
        with np.errstate(over="ignore", under="ignore"):
            return Oracle(names, coef[1:] * (scale_y / scale_x), error[1:] * (scale_y / scale_x))

    def problems(self, table: Any) -> list[str]:
        """Coefficients of a summary that are not near."""
        out = []
        for name, coef, error in zip(self.names, self.coef, self.error, strict=True):
            if name not in table.index:
                out.append(f"{name!r} is not in the summary")
                continue
            mean, sd = float(table.loc[name, "mean"]), float(table.loc[name, "sd"])
            with np.errstate(all="ignore"):
                near = abs(mean - coef) <= AWAY * max(sd, error) and sd <= RATIO * error * 2
                enough = sd >= error / (2 * RATIO)
            if not (near and enough):
                out.append(
                    f"{name!r} is {mean:.4g} (sd {sd:.3g}), by REML {coef:.4g} ({error:.3g})"
                )
        return out
