"""The page of a study: runs, results and claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from experiments.claims import interest
from experiments.landscape import design
from experiments.landscape.claims import (
    Judged,
    Records,
    all_claims,
    by_seed,
    chosen,
    judged,
    one,
    rises,
)
from experiments.landscape.design import ARMS, DIRECTIONS, MANY, SETS, SETTINGS, Setting
from experiments.landscape.figures import FIGURES
from experiments.landscape.measures import MINI_BATCH, POST_LOCAL, SCRATCH, SHAPES
from experiments.markdown import spread, table
from experiments.study import State
from localsgd.basics.paired import LEAST_SEEDS, evidence

STATES: tuple[State, ...] = ("reproduced", "not reproduced", "not decidable at this scale")
CAPTIONS = {
    "largest": "λ max by epoch of phase 2",
    "relative": "λ max over mini-batch's, paired",
    "top": "ten largest eigenvalues at the end",
    "curves": "ten shared, filter-normalised directions",
    "lines": "between post-local SGD and mini-batch SGD",
    "noise": "gradient noise",
    "drift": f"drift of the workers, H = {MANY}",
    "plane": "the plane through the three minima of seed 0",
}


def page(results: Mapping[str, Records]) -> str:
    """The page in Markdown."""
    parts = ["# Flat or sharp: results", _preamble()]
    for name, setting in SETTINGS.items():
        records = results.get(name, [])
        seeds = len(by_seed(records))
        if seeds > 1:
            parts += _setting(setting, records)
        else:
            parts += [f"## {name}", f"{seeds} of {setting.seeds} seeds run: too few to judge by."]
    return "\n\n".join(parts) + "\n"


def _preamble() -> str:
    text = (design.__doc__ or "").partition("\n\n")[2].strip()
    made = "Made by `python -m experiments.landscape` from the records beside it."
    return f"{made}\n\n## Design\n\n{text}"


def _setting(setting: Setting, records: Records) -> list[str]:
    seeds = by_seed(records)
    found = judged([*all_claims()], seeds, setting.seeds)
    return [
        f"## {setting.name}",
        _what(setting, records),
        "### What came out",
        _results(seeds),
        "### Claims",
        _enough(setting, len(seeds)),
        _count(found),
        _claims(found),
        _besides(seeds),
        "### Figures",
        "\n\n".join(f"![{CAPTIONS[w]}]({setting.name}-{w}.png)" for w in FIGURES),
    ]


def _what(setting: Setting, records: Records) -> str:
    efforts = chosen(records, "effort")
    samples = (
        "all samples" if setting.samples is None else f"{setting.samples:,} samples of each set"
    )
    some = "" if setting.train_samples is None else f", {setting.train_samples:,} training samples"
    return (
        f"{setting.model} on {setting.task}{some}; K = {setting.workers}, B = {setting.batch}, "
        f"{setting.epochs:g} epochs, γ = {setting.lr:g} for a batch of {setting.lr_batch}; "
        f"shape on {samples}; {len(efforts)} seeds of {setting.seeds}, "
        f"{sum(e['seconds'] for e in efforts) / 60:.0f} CPU minutes in all, "
        f"{sum(e['training_seconds'] for e in efforts) / 60:.0f} of them for training."
    )


def _results(seeds: list[Records]) -> str:
    heads = ["", "train accuracy", "train loss", "test accuracy", "test loss"]
    heads += ["λ max, train", "λ max, test", "trace, train", "λ max ‖w‖², train"]
    rows = []
    for arm in ARMS:

        def over(kind: str, data: str, key: str, scale: float = 1.0, arm: str = arm) -> str:
            values = [one(s, kind, model=arm, data=data)[key] for s in seeds]
            return _spread([scale * (v[0] if isinstance(v, list) else v) for v in values])

        row = [arm, over("result", "train", "accuracy", 100), over("result", "train", "loss")]
        row += [over("result", "test", "accuracy", 100), over("result", "test", "loss")]
        row += [over("eigenvalues", data, "values") for data in SETS]
        row += [over("trace", "train", "value")]
        row += [over("sharpness", "train", "times_norm") if arm in SHAPES else ""]
        rows.append(row)
    return "Mean ± deviation over seeds; accuracies in percent.\n\n" + table(heads, rows)


def _enough(setting: Setting, seeds: int) -> str:
    rule = (
        "Verdicts follow [the one rule](../../../docs/reproduce.md#verdicts): p is of Student's t "
        "over seeds, corrected (Holm) within its family."
    )
    if seeds < setting.seeds:
        return f"{rule} {seeds} of {setting.seeds} seeds are there: nothing is decided."
    if setting.seeds < LEAST_SEEDS:
        return f"{rule} {setting.seeds} seeds are planned, and a verdict takes {LEAST_SEEDS}."
    return rule


def _count(found: list[Judged]) -> str:
    words = []
    for group, wanted in (("the paper's", True), ("figures that the paper has not", False)):
        states = [each.state for each in found if bool(each.claim.where) == wanted]
        counts = Counter(states)
        told = ", ".join(f"{counts[state]} {state}" for state in STATES)
        words.append(f"{group}, {len(states)} in all: {told}")
    return f"Verdicts on {'; on '.join(words)}."


def _claims(found: list[Judged]) -> str:
    rows = []
    for each in found:
        claim, test = each.claim, each.test
        unit = " points" if claim.unit == "points" else ""
        said = evidence(test.interval, unit, claim.show)
        numbers = (interest(test, claim.least, unit, claim.show), f"{each.p:.2g}")
        where = claim.where or "–"
        rows.append([claim.text, where, said, *numbers, f"{test.flips:.2g}", each.state])
    heads = ["claim", "in the paper", "difference", "smallest of interest", "p", "sign flips", ""]
    note = "Ratios (x) are of the first named to the second; points are percent points of accuracy."
    return note + "\n\n" + table(heads, rows)


def _besides(seeds: list[Records]) -> str:
    """What has no interval: directions counted, and barriers."""
    lines = []
    for data in SETS:
        counts = [
            int((rises(s, POST_LOCAL, data) < rises(s, MINI_BATCH, data)).sum()) for s in seeds
        ]
        lines.append(
            f"- Directions, of {DIRECTIONS}, in which H = {MANY} is flatter than mini-batch, "
            f"{data}, by seed: {', '.join(map(str, counts))}. (The paper: all ten.)"
        )
    for start in (POST_LOCAL, SCRATCH):
        for data in SETS:
            pairs = [one(s, "interpolation", pair=f"{start} to {MINI_BATCH}") for s in seeds]
            lines.append(
                f"- Barrier of the {data} loss between {start} and mini-batch: "
                + _spread([pair["barrier"][data] for pair in pairs])
            )
    spreads = [one(s, "round spread") for s in seeds]
    for arm, whose in ((MINI_BATCH, "averaged"), (POST_LOCAL, "averaged"), (POST_LOCAL, "worker")):
        values = [spread[arm][whose] for spread in spreads]
        lines.append(f"- Spread of a round, {arm}, {whose} model: {_spread(values)}")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return spread(values, ".4g", ".2g")
