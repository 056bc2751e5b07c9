"""The numbers of an evaluation under flat names with units, for exports and loggers alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localsgd.train.data.metric import ACCURACY, metric_of
from localsgd.wire.metered import by_level, traffic


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of `metrics.jsonl`, or of `summary.json`, that are there.

    step                      local steps of each worker
    epoch                     passes over the training set
    train_loss, test_loss     mean losses; of the averaged model on test data
    test_accuracy_fraction    of the averaged model, of 1; or test_perplexity
    local_accuracy_fraction   mean over the workers' own models; or local_perplexity
    best_accuracy_fraction    of the best evaluation; or best_perplexity
    learning_rate             γ of the last step
    local_steps_level_1, ...  H of the last round, by level, the innermost first
    syncs_level_1, ...        averages of each level, the innermost first
    sent_bytes, ...           the ledger, as in `LocalSGD.metrics`
    drift_to_mean             mean distance of the workers to their mean, before a sync
    drift_between             mean distance of two workers
    training_seconds          without evaluating and saving
    """
    metric = metric_of(row)
    fraction = "_fraction" if metric is ACCURACY else ""
    names = {
        "step": "step",
        "steps": "step",
        "epoch": "epoch",
        "train_loss": "train_loss",
        "test_loss": "test_loss",
        metric.key: metric.key + fraction,
        metric.local: metric.local + fraction,
        metric.best: metric.best + fraction,
        "lr": "learning_rate",
    }
    found = {name: row[key] for key, name in names.items() if row.get(key) is not None}
    for name in ("local_steps", "syncs"):
        found |= by_level(name, row.get(name, ()))
    found |= traffic(row.get("ledger", ()))
    drift = row.get("drift", {})
    found |= {f"drift_{name}": value for name, value in drift.items() if value is not None}
    if "seconds" in row:
        found["training_seconds"] = row["seconds"]
    return found
