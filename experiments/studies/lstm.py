"""A language model: perplexity on the validation text."""

from __future__ import annotations

from typing import Any

from experiments import tuning
from experiments.arms import Arm, Row, arm, claim, jobs_of, published, table
from experiments.pictures import learning_curves
from experiments.study import Page, Records, Scale, Study

LABEL = "tab:lstm_lm_ppl"
STEPS = (8, 16)
TUNED = ("small", "large")
GROUNDS: dict[str, dict[str, Any]] = {
    "smoke": {"model": "lstm-1x16", "train_samples": 512, "batch": 2, "words": 60, "made": True},
    "small": {
        "model": "lstm-1x64",
        "train_samples": 4096,
        "batch": 4,
        "epochs": 20.0,
        "evaluate_every": 5.0,
        "words": 2000,
    },
    "paper": {"model": "lstm", "batch": 64, "epochs": 120.0},
}
COMMON: dict[str, Any] = {
    "task": "wikitext-2",
    "lr": 2.5,
    "lr_batch": 24,
    "lr_warmup": None,
    "weight_decay": 0.0,
    "momentum": 0.0,
    "batch_norm": "mean",
}
"""Rate and momentum are those of the released code."""


def arms(scale: Scale) -> dict[str, Arm]:
    ground = {**COMMON, **GROUNDS[scale.name]}
    wanted: dict[str, dict[str, Any]] = {
        "large": {"method": "mini-batch"},
        **{f"H = {h}": {"method": "post-local", "local_steps": (h,)} for h in STEPS},
        "small": {"method": "mini-batch", "workers": 1},
    }
    return {name: arm(scale, name, **{**ground, **settings}) for name, settings in wanted.items()}


def baselines(scale: Scale) -> list[Arm]:
    by = arms(scale)
    return [by[name] for name in TUNED]


def page(records: Records) -> Page:
    by = tuning.applied(records, arms(records.scale), TUNED)
    rows = [
        Row(
            (method, k, h),
            by[name],
            (published("lstm", "test_perplexity", batch=batch, local_steps=h),),
        )
        for name, method, k, h, batch in (
            ("small", "mini-batch", 1, 1, "small"),
            ("large", "mini-batch", 16, 1, "large"),
            ("H = 8", "post-local", 16, 8, "large"),
            ("H = 16", "post-local", 16, 16, "large"),
        )
    ]
    field = "test_perplexity"
    shown = table(
        "Perplexity (lower is better)", ("method", "K", "H"), rows, records, field=field, fit=False
    )
    claims = [
        claim(
            records,
            f"Post-local SGD with H = {h} has a lower perplexity than the large batch.",
            "appendix C.5.2",
            by[f"H = {h}"],
            by["large"],
            sign=-1,
            field=field,
            family="post-local",
        )
        for h in STEPS
    ]
    gap = claim(
        records,
        "A large batch ends at a higher perplexity than a small one.",
        "appendix C.5.2",
        by["small"],
        by["large"],
        sign=-1,
        field=field,
        paper_tunes=[by[name] for name in TUNED],
        family="gap",
    )
    curves = learning_curves(
        "curves",
        "Training loss and perplexity by epoch",
        records,
        [*by.values()],
        test="perplexity",
    )
    grids = tuning.pictures(records, baselines(records.scale))
    return Page(tables=[shown], pictures=[curves, *grids], claims=[gap, *claims], notes=NOTES)


NOTES = (
    "Small scale: one layer of 64, the 1,999 most frequent words and one for all others, 4,096 "
    "segments of 30 words, B = 4. A perplexity over this vocabulary is no perplexity over all "
    "33,278 words: only differences compare with the paper.",
    "The paper does not say what its small batch is; ours is one worker's. Each worker reads a "
    "stream of its own and keeps the hidden state.",
)
STUDY = Study(
    LABEL,
    lambda scale: jobs_of([*arms(scale).values()]),
    page,
    lambda records: tuning.later(records, baselines(records.scale)),
)
