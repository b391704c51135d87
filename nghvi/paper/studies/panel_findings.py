"""What the rows of the asset pricing studies say: four observations, and months as a factor."""

import numpy as np

from nghvi.paper.studies import asset_pricing_views, controls, month_term
from nghvi.paper.studies.exhibits import verdicts
from nghvi.paper.studies.labels import ERRORS, NO, YES, Gains, Held, any_better, panel_label
from nghvi.paper.studies.store import Row

LINEAR, INTERCEPT, COEFFICIENTS = "Linear", "Random Intercept", "Random Coefficients"
DEEP = ("DMM [8]", "DMM [32, 16, 8]")
PLAIN = ("FNN [8]", "FNN [32, 16, 8]")
BY_DEFAULT = "with networks fitted by the library's default"
BY_NG_HVI = "with networks fitted as in the paper"


def finance(held: Held) -> list[str]:
    """The paper's four observations on the test data."""
    rows = [row for row in held["finance"] if asset_pricing_views.is_model(row)]
    of = {(r["factors"], r["model"]): r for r in rows if r["response"] == "gaussian"}
    sets = [factors for factors in ("FF3", "FF5") if (factors, DEEP[1]) in of]
    if not sets:
        return []

    def gains(one: str, other: str) -> dict[str, tuple[float, float]]:
        pairs = {factors: (of[factors, one], of[factors, other]) for factors in sets}
        return {k: asset_pricing_views.difference(*pair) for k, pair in pairs.items()}

    intercept, coefficients = gains(INTERCEPT, LINEAR), gains(COEFFICIENTS, LINEAR)
    plain = {f"{k}, {name}": v for name in PLAIN for k, v in gains(name, LINEAR).items()}
    deeper, best = gains(DEEP[1], DEEP[0]), gains(DEEP[1], COEFFICIENTS)
    said = [
        "The differences are in test log score, ± a standard error by blocks of months; a "
        f"difference counts from {ERRORS:g} standard errors on. There is one panel, which is not "
        "the paper's.",
        f"{YES if not any_better(intercept) else NO}: the claim that a random intercept does not "
        f"improve a linear model ({gains_said(intercept)}).",
        f"{YES if not any_better(coefficients) else NO}: the claim that random coefficients do "
        f"not improve the log score of a linear model ({gains_said(coefficients)}).",
        f"{YES if not any_better(plain) else NO}: the claim that a network without groups, FNN, "
        f"does not improve on a linear model ({gains_said(plain)}).",
        f"{panel_label(deeper)}: the claim that [32, 16, 8] dominates [8] among the deep mixed "
        f"models, {BY_DEFAULT} ({gains_said(deeper)}).",
        f"{panel_label(best)}: the claim that the deep mixed model [32, 16, 8] improves "
        f"substantially on all alternatives, {BY_DEFAULT} (over random coefficients: "
        f"{gains_said(best)}).",
    ]
    for factors in sets:
        rows_of = of[factors, DEEP[1]], of[factors, COEFFICIENTS]
        month, value = asset_pricing_views.without_a_month(*rows_of)
        said.append(
            f"With {factors}, a single month matters: without {month} the difference changes from "
            f"{best[factors][0]:.4f} to {value:.4f}."
        )
    tried = [row for row in held.get("controls", []) if row["example"] == controls.PANEL]
    said.append(
        "The deep mixed models in these tables are fitted by the library's default method with its "
        "default priors, the paper's by NG-HVI with the paper's priors. The figures in brackets "
        "thus belong to another panel, another method and other priors. NG-HVI and SG-HVI on this "
        + (
            "panel follow."
            if tried
            else "panel have not been run ('nghvi reproduce controls --data' runs them)."
        )
    )
    return said + as_published(tried)


def as_published(rows: list[Row]) -> list[str]:
    """The observations about networks, with networks estimated as the paper estimates them."""
    of = {(row["factors"], row["model"], row["rule"], row["seed"]): row for row in rows}
    hybrid = {key: row for key, row in of.items() if key[2] == "ng-hvi"}
    if not hybrid:
        return []
    deeper, best, rules = {}, {}, {}
    for (factors, model, rule, seed), row in hybrid.items():
        name = f"{factors}, seed {seed}"
        if model == DEEP[1] and (factors, DEEP[0], rule, seed) in of:
            deeper[name] = asset_pricing_views.difference(row, of[factors, DEEP[0], rule, seed])
        gain = controls.compared_on_panel(row, rows)
        if model == DEEP[1] and gain is not None:
            best[name] = gain[:2]
        other = of.get((factors, model, "sg-hvi", seed))
        if other is not None:
            rules[f"{name}, {model[4:]}"] = asset_pricing_views.difference(row, other)
    said = []
    if deeper:
        said.append(
            f"{panel_label(deeper)}: the claim that [32, 16, 8] dominates [8] among the deep mixed "
            f"models, {BY_NG_HVI} ({gains_said(deeper)})."
        )
    if best:
        said.append(
            f"{panel_label(best)}: the claim that the deep mixed model [32, 16, 8] improves "
            f"substantially on all alternatives, {BY_NG_HVI} (over random coefficients: "
            f"{gains_said(best)})."
        )
    said += _how_far(rows)
    for (factors, model, _, seed), row in hybrid.items():
        base = controls.linear_on_panel(factors, rows)
        gain = controls.compared_on_panel(row, rows)
        if base is None or gain is None or gain.low * gain.high > 0:
            continue
        month, without = asset_pricing_views.without_a_month(row, base)
        said.append(
            f"A single month decides over NG-HVI's {model[4:]} with {factors} (seed {seed}): "
            f"{gain.mean:+.4f} ± {gain.error:.4f} over random coefficients, {without:+.4f} without "
            f"{month}."
        )
    if rules:
        said.append(f"NG-HVI over SG-HVI, both with 3,000 steps: {gains_said(rules)}.")
    return said


def _how_far(rows: list[Row]) -> list[str]:
    """How far the published rules end from their optimum, and how wide that leaves predictions."""
    pairs = [
        (row, base)
        for row in rows
        if row["rule"] in ("ng-hvi", "sg-hvi")
        and (base := controls.linear_on_panel(row["factors"], rows)) is not None
    ]
    if not pairs:
        return []
    below = [base["elbo"] - row["elbo"] for row, base in pairs]
    sds = [row["log_noise_var_sd"] / row["usual_sd"] for row, _ in pairs]
    own, linear = ([_covered(pair[k]) for pair in pairs] for k in (0, 1))
    return [
        f"Verdicts on these runs: {verdicts(row['verdict'] for row, _ in pairs)}. Their ELBOs are "
        f"{min(below):.0f} to {max(below):.0f} nats below that of linear random coefficients (with "
        "other priors), and the posterior sd of the log noise variance is "
        f"{min(sds):.1f} to {max(sds):.1f} times what this many rows leave. Their 50 % intervals "
        f"cover {min(own):.1f} to {max(own):.1f} % of the test returns, the linear model's "
        f"{min(linear):.1f} to {max(linear):.1f} %. Returns with heavy tails reward predictive "
        "densities that are too wide, so a better log score is no sign of a better fit here."
    ]


def _covered(row: Row) -> float:
    """Percentage of the test returns in their 50 % intervals."""
    return 100 * float(np.mean(row["coverage_test"]["0.5"]))


def months(held: Held) -> list[str]:
    """What months as a second factor change, and whether networks gain with them."""
    rows = held["months"]
    said = [
        "Models are compared with random coefficients with months by their test log score per "
        "return, with returns scored one by one and with all returns of a month scored jointly; ± "
        "is a standard error by blocks of months. A model is ahead if both differences exceed "
        f"{ERRORS:g} standard errors and stay positive whichever month is left out."
    ]
    for row in rows:
        base = month_term.baseline(row, rows)
        chosen = month_term.is_deep(row) or (row["model"] == COEFFICIENTS and not row["month"])
        if base is None or not chosen:
            continue
        found = {kind: asset_pricing_views.compared(row, base, kind) for kind in month_term.KINDS}
        better = all(low > 0 and gain > ERRORS * se for gain, se, low, _ in found.values())
        name = row["model"] + (
            f" (seed {row['seed']})" if month_term.is_deep(row) else " without months"
        )
        ahead = "is ahead" if better else "is not ahead"
        gains = "; ".join(
            f"{title} {found[kind][0]:.4f} ± {found[kind][1]:.4f}, and {found[kind][2]:.4f} to "
            f"{found[kind][3]:.4f} with any one month left out"
            for kind, title in month_term.KINDS.items()
        )
        given_up = month_term.is_deep(row) and not row["network"]
        note = "; the network was dropped, so this is a linear model" * given_up
        said.append(f"With {row['factors']}, the model {name} {ahead} ({gains}{note}).")
    return said


def gains_said(gains: Gains) -> str:
    """Differences with their standard errors, as a list in words."""
    return "; ".join(f"{name} {gain:+.4f} ± {se:.4f}" for name, (gain, se) in gains.items())
