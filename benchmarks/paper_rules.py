"""The published rules on the paper's data, compared with the default.

Example 1 (linear mixed model): the corrected ELBO of every rule and rank against the log
evidence. Example 2(a) (network [5, 5]): test R2, log score and ELBO of the published rules. All
through the same engine; only direction, step rule and family differ.
"""

import argparse
import json
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nghvi import scores
from nghvi.data.grouped import Rows
from nghvi.families import family_of
from nghvi.inference import infer
from nghvi.methods import published_start
from nghvi.models.mixed import MixedModel
from nghvi.models.smallest_form import prepare
from nghvi.networks import Identity, Perceptron
from nghvi.paper.studies.facts import about
from nghvi.priors import InverseGamma, Priors
from nghvi.responses import Gaussian

RULES = ("ng-hvi", "ng-hvi-printed", "sg-hvi")


def read(folder: pathlib.Path, name: str, part: str, drop_offset: bool) -> tuple:
    """Inputs, responses and group codes of one part of a simulated example."""
    with np.load(folder / f"{name}.npz") as stored:
        x, y = stored[f"X_{part}"], stored[f"y_{part}"].ravel()
        group = stored[f"group_{part}"].ravel().astype(int)
    return x[:, 1:] if drop_offset else x, y, group - group.min()


def example1(folder: pathlib.Path, name: str, steps: int) -> list[dict]:
    """ELBO of the default and of the published rules against the evidence."""
    x, y, group = read(folder, name, "train", False)
    rows = Rows.from_arrays(x, y, group, group.max() + 1)
    model = MixedModel(
        Identity(x.shape[1]), Gaussian(), Priors(noise=InverseGamma(), effects=InverseGamma()), (0,)
    )
    data = prepare(model, rows)
    found = []
    settings: list[tuple[str, int | str]] = [
        ("auto", "full"),
        ("auto", 3),
        ("auto", 1),
        ("auto", 0),
    ]
    settings += [("ng-hvi", 3), ("ng-hvi", 1), ("ng-hvi", 0), ("ng-hvi-printed", 3), ("sg-hvi", 3)]
    evidence = float("nan")
    for method, rank in settings:
        begun, family = time.perf_counter(), family_of(rank)
        if method == "auto":
            done = infer(model, data, family=family)
        else:
            start = published_start(model, rows, 0)
            done = infer(model, rows, method=method, family=family, steps=steps, start=start)
        if (method, rank) == ("auto", "full"):
            evidence = done.log_evidence
        found.append(
            {
                "example": name,
                "method": method,
                "rank": rank,
                "elbo": done.elbo,
                "elbo_se": done.elbo_se,
                "log_evidence": evidence,
                "converged": done.converged,
                "seconds": time.perf_counter() - begun,
                "mean": np.asarray(done.q.centre).round(4).tolist(),
                "sd": np.asarray(done.q.standard_deviation()).round(4).tolist(),
            }
        )
        print(
            f"{name:20s} {method:15s} rank {rank!s:5s} ELBO {done.elbo:10.2f} "
            f"+- {done.elbo_se:.2f}  log p(y) {evidence:10.2f}  gap {evidence - done.elbo:6.2f}  "
            f"{found[-1]['seconds']:6.1f} s",
            flush=True,
        )
    return found


def example2a(folder: pathlib.Path) -> list[dict]:
    """Test accuracy of the published rules on the small network."""
    x, y, group = read(folder, "ex2a", "train", True)
    test = read(folder, "ex2a", "test", True)
    rows = Rows.from_arrays(x, y, group, 1000)
    model = MixedModel(Perceptron(5, (5, 5)), Gaussian(), Priors.paper(), tuple(range(6)))
    found = []
    for method, steps in [
        ("ng-hvi", 3000),
        ("ng-hvi-printed", 3000),
        ("sg-hvi", 3000),
        ("sg-hvi", 10_000),
    ]:
        begun = time.perf_counter()
        start = published_start(model, rows, 1)
        done = infer(model, rows, method=method, steps=steps, start=start, seed=1)
        seconds = time.perf_counter() - begun
        r2, log_score = _test_scores(model, rows, done, *test)
        row = {
            "example": "ex2a", "method": method, "steps": steps, "elbo": done.elbo,
            "test_r2": r2, "test_log_score": log_score, "seconds": seconds,
        }  # fmt: skip
        found.append(row)
        print(
            f"ex2a {method:15s} {steps:6d} steps  ELBO {done.elbo:10.1f}  test R2 {r2:.4f}  "
            f"LS {log_score:.4f}  {seconds:6.1f} s",
            flush=True,
        )
    return found


def _test_scores(
    model: MixedModel, rows: Rows, done: Any, x: Any, y: Any, group: Any
) -> tuple[float, float]:
    """R2 and log score with the effects integrated over their conditional, 500 draws."""

    @jax.jit
    def one(params: Any) -> Any:
        mean, cov = model.effect_moments(jax.random.key(0), params, rows)
        mean = rows.in_original_order(mean)
        cov = rows.in_original_order(jnp.moveaxis(cov, -1, 0))
        h = model.features(params, jnp.asarray(x))
        location = h @ params.coef + jnp.sum(h * mean[group], axis=1)
        spread = jnp.exp(params.dispersion[0]) + jnp.einsum("ni,nij,nj->n", h, cov[group], h)
        return location, -0.5 * (jnp.log(2 * jnp.pi * spread) + (y - location) ** 2 / spread)

    drawn = done.draws(500)
    location, density = jax.lax.map(one, drawn)
    return (
        scores.r2(y, np.asarray(location).mean(axis=0)),
        scores.log_score(np.asarray(density)),
    )


def main() -> int:
    """Run both examples and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, default="../shared/data/paper_examples")
    parser.add_argument("--steps", type=int, default=10_000)
    chosen = parser.parse_args()
    if not chosen.data.is_dir():
        print(f"no examples in {chosen.data}: give --data DIR")
        return 0
    rows = []
    for name in ("ex1_K1000_ratio1", "ex1_K100_ratio1", "ex1_K100_ratio0.01"):
        rows += example1(chosen.data, name, chosen.steps)
    rows += example2a(chosen.data)
    results = pathlib.Path(__file__).parent / "results" / "paper_rules.json"
    results.write_text(json.dumps({"about": about(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
