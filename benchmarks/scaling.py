"""Time of a step, memory per row and bytes exchanged per step against the number of groups.

Groups of equal size, an intercept and a slope by group, rows kept as rows; effects integrated out,
one draw of theta per step. Every size runs in its own process with the given number of
(forced) devices; bytes are read from the compiled program.

Run: python -m benchmarks.scaling [--groups 1000 10000 100000 1000000] [--devices 2]
"""

import argparse
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

from nghvi.paper.studies.facts import about

GROUP_SIZE, COLUMNS = 5, 3
EXCHANGES = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
GIGABYTE = 1024**3


def table(groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(groups), GROUP_SIZE)
    x = np.column_stack([np.ones(group.size), rng.normal(size=(group.size, COLUMNS - 1))])
    y = x @ np.arange(COLUMNS) + rng.normal(size=groups)[group] + rng.normal(size=group.size)
    return x, y, group


def bytes_exchanged(program: str) -> int:
    """Size of what devices exchange in one pass through a compiled program."""
    total = 0
    for line in program.splitlines():
        found = re.search(rf"= (.*?) (?:{EXCHANGES})(?:-start)?\(", line)
        for kind, shape in re.findall(r"[a-z]+(\d+)\[([\d,]*)\]", found.group(1) if found else ""):
            total += int(kind) // 8 * int(np.prod([int(n) for n in shape.split(",") if n]))
    return total


def measure(groups: int, devices: int, seconds: float) -> dict[str, float]:
    """One size in this process."""
    import jax
    import jax.numpy as jnp

    from nghvi._core import loop
    from nghvi._core.direction import ScaledGradient
    from nghvi._core.draws import IndependentDraws
    from nghvi._core.hybrid import HybridVI
    from nghvi._core.model import parameter_dimension
    from nghvi._core.score import Integrated
    from nghvi._core.step_rules import Adam
    from nghvi.data import Rows
    from nghvi.families.factor import FactorGaussian
    from nghvi.models.divided import Sharded, mesh_of, shard
    from nghvi.models.mixed import MixedModel
    from nghvi.networks import Identity
    from nghvi.priors import InverseGamma, Priors
    from nghvi.responses import Gaussian

    plain = MixedModel(Identity(COLUMNS), Gaussian(), Priors(noise=InverseGamma()), (0, 1))
    rows = Rows.from_arrays(*table(groups), groups)
    mesh = mesh_of(devices)
    assert mesh is not None
    model, data = Sharded(plain), shard(rows, mesh)
    m = parameter_dimension(model, data)
    unit = jnp.full(m, 0.1)
    q = FactorGaussian.start(jnp.zeros(m), unit, 3, 0.01 * unit[:, None])
    algorithm = HybridVI(
        IndependentDraws(1), Integrated(), ScaledGradient(unit), Adam(0.01, 10**6, 0.0)
    )
    key, chunk = jax.random.key(0), 10
    current = loop.fit(key, algorithm, model, data, q, num_steps=chunk, chunk=chunk)
    times: list[float] = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 100):
        begun = time.perf_counter()
        current = loop.fit(
            *(key, algorithm, model, data, q),
            num_steps=current.step + chunk,
            chunk=chunk,
            resume=current,
        )
        times.append(time.perf_counter() - begun)
    carry = (current.state, current.tail, current.tail_count)
    at = jnp.asarray(0), jnp.asarray(chunk), jnp.asarray(0)
    program: Any = loop._run_chunk
    lowered = program.lower(algorithm, model, data, key, carry, *at, chunk)
    compiled = lowered.compile().compiled
    used = compiled.memory_analysis()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "groups": groups, "rows": groups * GROUP_SIZE, "devices": devices, "parameters": m,
        "seconds_a_step": float(np.median(times)) / chunk,
        "bytes_exchanged_a_step": bytes_exchanged(compiled.as_text()),
        "device_bytes_a_row": devices * (used.argument_size_in_bytes + used.temp_size_in_bytes)
        / (groups * GROUP_SIZE),
        "peak_gb": peak / GIGABYTE,
    }  # fmt: skip


def slope(rows: list[dict], smallest: int = 10_000) -> float:
    """Of log time in log groups, above the smallest."""
    large = [row for row in rows if row["groups"] >= smallest]
    if len(large) < 2:
        return float("nan")
    logs = np.log([[row["groups"], row["seconds_a_step"]] for row in large])
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def main() -> int:
    """Run every size, print the table and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = [1000, 10_000, 30_000, 100_000, 300_000, 1_000_000]
    parser.add_argument("--groups", type=int, nargs="+", default=sizes)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="of measuring, a size")
    parser.add_argument("--one", action="store_true", help="this process, one size, JSON out")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.groups[0], chosen.devices, chosen.seconds)))
        return 0
    rows: list[dict] = []
    flags = f"--xla_force_host_platform_device_count={chosen.devices}"
    print("    groups  seconds per step  bytes exchanged  bytes per row  peak GB")
    for groups in chosen.groups:
        command = [sys.executable, "-m", "benchmarks.scaling", "--one", "--groups", str(groups)]
        command += ["--devices", str(chosen.devices), "--seconds", str(chosen.seconds)]
        ended = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "XLA_FLAGS": flags}
        )
        if ended.returncode:
            rows.append({"groups": groups, "failed": ended.stderr.strip().splitlines()[-1:]})
            print(rows[-1], flush=True)
            continue
        row = json.loads(ended.stdout.splitlines()[-1])
        rows.append(row)
        print(
            f"{groups:10d}  {row['seconds_a_step']:14.6f}  {row['bytes_exchanged_a_step']:15d}"
            f"  {row['device_bytes_a_row']:11.0f}  {row['peak_gb']:7.2f}",
            flush=True,
        )
    found = {"about": about(), "slope": slope([r for r in rows if "failed" not in r]), "rows": rows}
    print(f"slope of log time in log groups, from 10,000: {found['slope']:.3f}")
    results = pathlib.Path(__file__).parent / "results" / f"scaling-{chosen.devices}.json"
    results.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
