"""NumPyro NUTS on one case of ``benchmarks.responses``, in its own process.

One chain, 300 steps of adaptation and 300 draws, in single precision and compiled once: what
NumPyro does fastest. The models are written with NumPyro's own distributions and share nothing
with the library. Effects are non-centred, or centred where groups have much to say.
"""

import json
import pathlib
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from jax import Array
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

WARMUP, KEPT = 300, 300


def half_t(scale: float = 2.5) -> dist.Distribution:
    """Half-t with two degrees of freedom."""
    return dist.FoldedDistribution(dist.StudentT(2.0, 0.0, scale))


def observe(case: dict, rows: dict[str, Array], eta: Array) -> None:
    """y given its linear predictor."""
    y, response = rows["y"], case["response"]
    if response == "poisson":
        numpyro.sample("seen", dist.Poisson(jnp.exp(eta)), obs=y)
    elif response == "negative-binomial":
        spread = numpyro.sample("1/sqrt(size)", dist.HalfNormal(1.0))
        numpyro.sample("seen", dist.NegativeBinomial2(jnp.exp(eta), spread**-2), obs=y)
    elif response == "binomial":
        numpyro.sample("seen", dist.Binomial(rows["trials"], logits=eta), obs=y)
    else:
        cuts = case["classes"] - 1
        ordered = dist.ImproperUniform(dist.constraints.ordered_vector, (), (cuts,))
        cutpoint = numpyro.sample("cutpoint", ordered)
        numpyro.factor("cutpoints", jnp.sum(dist.Normal(0.0, 10.0).log_prob(cutpoint)))
        numpyro.sample("seen", dist.OrderedLogistic(eta, cutpoint), obs=y)


def model_of(case: dict) -> Any:
    """The model as a function of the arrays of the rows."""
    columns, groups = len(case["design_columns"]), case["groups"]

    def model(rows: dict[str, Array]) -> None:
        coef = numpyro.sample("coef", dist.Normal(0.0, 10.0).expand([columns]).to_event(1))
        sd = numpyro.sample("sd", half_t())
        if case["centred"]:
            effects = numpyro.sample("effects", dist.Normal(0.0, sd).expand([groups]).to_event(1))
        else:
            standard = dist.Normal(0.0, 1.0).expand([groups]).to_event(1)
            effects = sd * numpyro.sample("whitened", standard)
        eta = rows["offset"] + rows["design"] @ coef + effects[rows["group"]]
        observe(case, rows, eta)

    return model


def arrays(case: dict, table: pd.DataFrame) -> dict[str, Array]:
    """What the model reads."""
    design = table.reindex(columns=case["design_columns"], fill_value=1.0)
    found = {
        "y": table[case["y"]].to_numpy(),
        "design": design.to_numpy(float),
        "group": pd.factorize(table[case["factor"]])[0],
        "offset": table[case["offset"]].to_numpy() if case["offset"] else np.zeros(len(table)),
    }
    if case["trials"]:
        found["trials"] = table[case["trials"]].to_numpy()
    return {name: jnp.asarray(values) for name, values in found.items()}


def moments(case: dict, draws: dict[str, Array]) -> dict[str, tuple[float, float, float]]:
    """Mean, sd and effective draws of what is compared, by the references' names."""
    found = {name: draws["coef"][:, j] for j, name in enumerate(case["design_columns"])}
    found[f"sd({case['factor']})"] = draws["sd"]
    if "1/sqrt(size)" in draws:
        found["1/sqrt(size)"] = draws["1/sqrt(size)"]
    if "cutpoint" in draws:
        found |= {f"cutpoint_{k + 1}": c for k, c in enumerate(draws["cutpoint"].T)}
    table = {name: np.asarray(values, float) for name, values in found.items()}
    return {
        name: (v.mean(), v.std(ddof=1), float(effective_sample_size(v[None])))
        for name, v in table.items()
    }


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    case = json.loads((folder / "case.json").read_text())
    rows, model = arrays(case, pd.read_csv(folder / "rows.csv")), model_of(case)

    @jax.jit
    def run(key: Array, rows: dict[str, Array]) -> tuple[dict, dict]:
        sampler = MCMC(NUTS(model), num_warmup=WARMUP, num_samples=KEPT, progress_bar=False)
        sampler.run(key, rows, extra_fields=("num_steps", "diverging"))
        return sampler.get_samples(), sampler.get_extra_fields()

    begun, busy = time.perf_counter(), time.process_time()
    compiled = run.lower(jax.random.key(0), rows).compile()
    compiling = time.perf_counter() - begun, time.process_time() - busy
    begun, busy = time.perf_counter(), time.process_time()
    draws, extra = jax.block_until_ready(compiled(jax.random.key(1), rows))
    seconds, cpu = time.perf_counter() - begun, time.process_time() - busy
    found = moments(case, draws)
    facts = {
        "first": round(compiling[0] + seconds, 2),
        "first_cpu": round(compiling[1] + cpu, 2),
        "warm": round(seconds, 3),
        "warm_cpu": round(cpu, 3),
        "least_effective_draws": round(min(ess for *_, ess in found.values())),
        "leapfrog_steps_per_draw": round(float(np.mean(extra["num_steps"])), 1),
        "divergent_draws": int(np.sum(extra["diverging"])),
        "parameters": {name: (mean, sd) for name, (mean, sd, _) in found.items()},
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
