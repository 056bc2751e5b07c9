"""Figures along a line or along training: curves, interpolation, noise, drift."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from localsgd.landscape.figures.style import colour, dash, legend, panels, place_of, with_default

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]


def curves(records: list[Record]) -> Figure:
    """Loss along shared directions, a panel a data set, a colour a model, a line a direction."""
    sets = place_of(record.get("data") for record in records)
    models = place_of(record.get("model") for record in records)
    figure, all_axes = panels(len(sets))
    for data, axes in zip(sets, all_axes, strict=True):
        told = set()
        for record in (r for r in records if r.get("data") == data):
            model = record.get("model")
            axes.plot(
                record["steps"],
                with_default(record["loss"]),
                linewidth=0.8,
                linestyle=dash(models[model]),
                color=colour(models[model]),
                label=None if model in told else model,
            )
            told.add(model)
        axes.set(xlabel="step along the direction", ylabel="loss", title=data or "")
        legend(axes)
    return figure


def interpolation(records: list[Record]) -> Figure:
    """Loss and accuracy on the line between two models; full lines train, dashed ones test."""
    figure, (losses, accuracies) = panels(2)
    for index, record in enumerate(records):
        for place, (data, values) in enumerate(record["data"].items()):
            label = ", ".join(part for part in (record.get("pair"), data) if part)
            style = {"color": colour(index), "linestyle": dash(place), "label": label}
            losses.plot(record["positions"], with_default(values["loss"]), **style)
            if any(accuracy is not None for accuracy in values["accuracy"]):
                percent = [100 * accuracy for accuracy in with_default(values["accuracy"])]
                accuracies.plot(record["positions"], percent, **style)
    for axes, name in ((losses, "loss"), (accuracies, "accuracy (%)")):
        axes.set(xlabel="position (0: first model, 1: second model)", ylabel=name)
        for end in (0, 1):
            axes.axvline(end, color="grey", linewidth=0.6)
        legend(axes)
    return figure


def noise(records: list[Record]) -> Figure:
    """Noise of a worker's step and of the averaged one along training, and their ratio.

    What was measured on other than training data is left out: no step is taken on it.
    """
    figure, (traces, ratios) = panels(2)
    records = [r for r in records if r.get("data") in (None, "train")] or records
    models = place_of(record.get("model") for record in records)
    for model, index in models.items():
        rows = sorted((r for r in records if r.get("model") == model), key=_when)
        times = [_when(r) for r in rows]
        for place, key in enumerate(("worker", "averaged")):
            label = f"{model}, {key}" if model else key
            style = {"color": colour(index), "linestyle": dash(place), "marker": "."}
            traces.plot(times, [r[key] for r in rows], label=label, **style)
        ratios.plot(
            times,
            with_default(r["ratio"] for r in rows),
            color=colour(index),
            marker=".",
            label=model,
        )
        ratios.axhline(rows[0]["workers"], color="grey", linewidth=0.6)
    traces.set(xlabel="epoch", ylabel="trace of the step's covariance", yscale="log")
    ratios.set(xlabel="epoch", ylabel="worker's noise / averaged (grey: K)")
    for axes in (traces, ratios):
        legend(axes)
    return figure


def drift(records: list[Record]) -> Figure:
    """Distances between workers, and cosines between workers and between rounds, along training."""
    figure, (distances, cosines) = panels(2)
    models = place_of(record.get("model") for record in records)
    for model, index in models.items():
        rows = sorted((r for r in records if r.get("model") == model), key=_when)
        steps = [_when(r) for r in rows]
        shown = (
            (distances, "distance to the mean", [_mean(r["to_mean"]) for r in rows]),
            (distances, "length of an update", [_mean(r["updates"]) for r in rows]),
            (cosines, "between workers", with_default(r["cosine"] for r in rows)),
            (cosines, "between rounds", with_default(r.get("between_rounds") for r in rows)),
        )
        for place, (axes, name, values) in enumerate(shown):
            label = f"{model}, {name}" if model else name
            axes.plot(steps, values, color=colour(index), linestyle=dash(place % 2), label=label)
    distances.set(xlabel="local steps", ylabel="distance in weight space")
    cosines.set(xlabel="local steps", ylabel="cosine of updates")
    for axes in (distances, cosines):
        legend(axes)
    return figure


def _when(record: Record) -> float:
    return record.get("epoch", record.get("step", 0))


def _mean(values: list[float | None]) -> float:
    numbers = with_default(values)
    return sum(numbers) / len(numbers)
