"""Do mini-batches of groups find the posterior that all groups at once find?

A network is fitted by mini-batches; from its result a further stage of polishing is run three
times: with all groups (the reference), with anchored batches, and with batches without an anchor.
All see the same draws of theta, so what differs is what the batches do. A fourth run, all groups
with other draws, says how far apart two runs without batches are.

Run: python -m benchmarks.batch_agreement [--groups 20000] [--batch-groups 1000] [--steps 500]
"""

import argparse
import json
import pathlib
import time
from typing import Any

import jax
import numpy as np

from benchmarks.large_table import INPUTS, bits
from nghvi._core.loop import fit
from nghvi._core.score import Integrated
from nghvi._core.variational import Variational
from nghvi.data import Rows
from nghvi.families import Factor
from nghvi.inference import infer
from nghvi.models.divided import in_batches
from nghvi.models.mixed import MixedModel
from nghvi.networks import Perceptron
from nghvi.paper.studies.facts import about
from nghvi.priors import InverseGamma, Priors
from nghvi.recipes.deep import deep_recipe
from nghvi.recipes.settings import Settings
from nghvi.responses import Gaussian

HIDDEN, RANK, ROWS_A_GROUP = (8, 4), 3, 20
POLISH_SHARE = 9 / 24


def simulated(num_groups: int) -> Rows:
    """The large table's rows, standardised."""
    parts = list(bits(num_groups, ROWS_A_GROUP * num_groups))
    columns = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    y = (columns["y"] - columns["y"].mean()) / columns["y"].std()
    x = np.column_stack([columns[name] for name in INPUTS])
    return Rows.from_arrays(x, y, columns["group"], num_groups)


def distance(reference: Variational, other: Variational) -> dict[str, Any]:
    """Coordinates whose mean is off by more than 0.2 sd, or whose sd by more than 10 %."""
    sd = np.asarray(reference.standard_deviation())
    off = np.abs(np.asarray(other.centre) - np.asarray(reference.centre)) / sd
    ratio = np.asarray(other.standard_deviation()) / sd
    return {
        "coordinates": sd.size,
        "means_off": int((off > 0.2).sum()),
        "sds_off": int(((ratio < 0.9) | (ratio > 1.1)).sum()),
        "mean_error_quantiles_50_90_100": np.quantile(off, [0.5, 0.9, 1]).round(3).tolist(),
        "sd_ratio_quantiles_0_10_50_90_100": np.quantile(ratio, [0, 0.1, 0.5, 0.9, 1])
        .round(3)
        .tolist(),
    }


def compare(num_groups: int, batch_groups: int, steps: int) -> dict[str, Any]:
    """Fit, polish four ways, compare."""
    rows = simulated(num_groups)
    model = MixedModel(
        Perceptron(len(INPUTS), HIDDEN),
        Gaussian(),
        Priors(noise=InverseGamma()),
        tuple(range(HIDDEN[-1] + 1)),
    )
    began = infer(model, rows, n_starts=1, batch_groups=batch_groups)
    piece_model, bare = in_batches(model, rows, batch_groups)
    anchored = bare.anchored(jax.random.key(3), piece_model, Integrated(), began.q.centre)
    settings = Settings(family=Factor(RANK), steps=round(steps / POLISH_SHARE), n_starts=1)
    recipe = deep_recipe(model, rows, Integrated(), settings)
    stage = recipe.stages[-1]

    def polished(model: Any, data: Any, seed: int) -> tuple[Variational, float]:
        begun = time.perf_counter()
        done = fit(
            jax.random.key(seed),
            stage.algorithm,
            model,
            data,
            began.q,
            num_steps=stage.num_steps,
            chunk=stage.chunk,
            average_last=stage.average_last,
        )
        return done.q, time.perf_counter() - begun

    reference, seconds = polished(model, rows, 1)
    found: dict[str, Any] = {
        "groups": num_groups,
        "rows": rows.num_rows,
        "pieces": bare.pieces.num_pieces,
        "steps": stage.num_steps,
        "start": str(began.verdict),
        "seconds_all_groups": seconds,
    }
    for name, data in (("anchored", anchored), ("not_anchored", bare)):
        other, seconds = polished(piece_model, data, 1)
        found[name] = {**distance(reference, other), "seconds": seconds}
    found["all_groups_other_draws"] = distance(reference, polished(model, rows, 2)[0])
    return found


def main() -> int:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--groups", type=int, default=20_000)
    parser.add_argument("--batch-groups", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=500)
    chosen = parser.parse_args()
    found = compare(chosen.groups, chosen.batch_groups, chosen.steps)
    print(json.dumps(found, indent=1))
    results = pathlib.Path(__file__).parent / "results" / "batch_agreement.json"
    results.write_text(json.dumps({"about": about(), **found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
