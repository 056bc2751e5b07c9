"""ImageNet: local SGD with a warm-up of H, post-local SGD, and LARS with and without it."""

from __future__ import annotations

from typing import Any

from experiments import clock, modelled
from experiments.arms import Arm, Row, arm, claim, jobs_of, published, table
from experiments.pictures import learning_curves
from experiments.registry import entry
from experiments.study import Claim, Page, Picture, Records, Scale, Study, Table

LOCAL = "fig:imagenet"
POST_LOCAL = "fig:post_local_sgd_on_imagenet"
LARS = "tab:resnet50_imagenet_lars"
WORKERS = 32
FULL: dict[str, Any] = {
    "task": "imagenet",
    "model": "imagenet-resnet50",
    "workers": WORKERS,
    "batch": 128,
    "epochs": 90.0,
    "lr": 0.1,
    "lr_batch": 256,
}
PROXY: dict[str, Any] = {"workers": WORKERS, "lr_decay_at": (30 / 90, 60 / 90, 80 / 90)}
"""Other data and another network, with the decays of ImageNet."""
TRUST: dict[str, dict[str, Any]] = {
    "smoke": {"trust": 0.005},
    "small": {"trust": 0.005},
    "paper": {"trust": 0.02},
}
"""Trust coefficients of LARS; the implementation that the paper names has 0.02 as default."""


def ground(scale: Scale, **settings: Any) -> dict[str, Any]:
    return {**(FULL if scale.name == "paper" else PROXY), **settings}


def local_arms(scale: Scale) -> dict[str, Arm]:
    """H is 1, 2 and 4 in the first three of 90 epochs, then 8."""
    epochs = FULL["epochs"] if scale.name == "paper" else scale.ground["epochs"]
    return {
        "mini-batch": arm(scale, "mini-batch", **ground(scale, method="mini-batch")),
        "local": arm(
            scale,
            "local, H = 8 after 1, 2, 4",
            **ground(
                scale,
                method="local-warmup",
                local_steps=(8,),
                step_warmup=round(3 * epochs / 90, 4),
                step_warmup_shape="exponential",
            ),
        ),
    }


def page_of_local(records: Records) -> Page:
    by = local_arms(records.scale)
    (known,) = entry("imagenet-local").values
    rows = [Row((name,), one) for name, one in by.items()]
    ratios = modelled.speedups(records, by["local"], by["mini-batch"], WORKERS)
    shown = f"{sum(ratios) / len(ratios):.2f}" if ratios else None
    speed = Table(
        "Time of a run",
        ("method", "speed-up (modelled)", "paper, to 75 %"),
        [["local, H = 8", shown, f"at least {known['speedup_at_least']:g}"]],
        [by["local"].jobs],
    )
    claims = [
        modelled.faster(
            records,
            "Local SGD with H = 8 is at least 1.5 times as fast as mini-batch SGD on 32 workers.",
            "section 4.1; appendix B.3.2",
            by["local"],
            by["mini-batch"],
            WORKERS,
        ),
        claim(
            records,
            "Local SGD with H = 8 is as accurate as mini-batch SGD, within 0.5 points.",
            "appendix B.3.2",
            by["local"],
            by["mini-batch"],
            margin=0.5,
            family="local",
        ),
    ]
    curves = _curves(records, by)
    return Page(
        [table("Local SGD on 32 workers", ("method",), rows, records, paper=()), speed],
        [curves],
        claims,
        (*NOTES, clock.NOTE),
    )


def post_local_arms(scale: Scale) -> dict[tuple[int, str], Arm]:
    """The arms by the paper's global batch and the method.

    The paper does not name its H; ours is 4, as in its table with LARS.
    """
    unit = FULL["batch"] if scale.name == "paper" else scale.ground["batch"]
    return {
        (128 * WORKERS * factor, method): arm(
            scale,
            f"{method}, {WORKERS} x {unit * factor}",
            **ground(scale, method=method, batch=unit * factor, **_steps(method)),
        )
        for factor in (1, 2)
        for method in ("mini-batch", "post-local")
    }


def lars_arms(scale: Scale) -> dict[tuple[int, str], Arm]:
    """The arms by the paper's global batch, two and four times the usual one, and the method."""
    unit = FULL["batch"] if scale.name == "paper" else scale.ground["batch"]
    return {
        (128 * WORKERS * factor, method): arm(
            scale,
            f"LARS, {method}, {WORKERS} x {unit * factor}",
            **ground(
                scale,
                method=method,
                batch=unit * factor,
                optimizer="lars",
                **TRUST[scale.name],
                **_steps(method),
            ),
        )
        for factor in (2, 4)
        for method in ("mini-batch", "post-local")
    }


def _steps(method: str) -> dict[str, Any]:
    return {"local_steps": (4,)} if method == "post-local" else {}


def page_of_post_local(records: Records) -> Page:
    by = post_local_arms(records.scale)
    page = _by_batch(records, by, "imagenet-post-local", "Post-local SGD, H = 4", "appendix C.5.3")
    factor = (1 + clock.price(WORKERS)) / (1 + clock.price(WORKERS) / 4)
    speed = Table(
        "The second phase",
        ("H", "speed-up (modelled)", "paper"),
        [[4, f"{factor:.2f}", 1.35]],
    )
    return Page(
        [*page.tables, speed],
        [_curves(records, {one.name: one for one in by.values()})],
        page.claims,
        (*page.notes, clock.NOTE),
    )


def page_of_lars(records: Records) -> Page:
    return _by_batch(
        records, lars_arms(records.scale), "lars", "LARS, with H = 4 and without", "section 4.2"
    )


def _by_batch(
    records: Records, by: dict[tuple[int, str], Arm], name: str, title: str, place: str
) -> Page:
    rows = [
        Row(
            ((one.run.batch or 0) * WORKERS, method),
            one,
            (batch, published(name, global_batch=batch, method=method)),
        )
        for (batch, method), one in by.items()
    ]
    shown = table(
        title,
        ("global batch", "method"),
        rows,
        records,
        paper=("paper: global batch", "paper: test acc."),
    )
    claims = [
        _better(records, by[batch, "post-local"], by[batch, "mini-batch"], place)
        for batch in sorted({batch for batch, _ in by})
    ]
    return Page([shown], [], claims, NOTES)


def _better(records: Records, post_local: Arm, mini_batch: Arm, place: str) -> Claim:
    sentence = f"{post_local.name} is better than mini-batch SGD with the same optimizer."
    return claim(
        records,
        sentence,
        place,
        post_local,
        mini_batch,
        family="post-local",
    )


def _curves(records: Records, by: dict[str, Arm]) -> Picture:
    return learning_curves(
        "curves", "Training loss and test accuracy by epoch", records, [*by.values()]
    )


NOTES = (
    "Not ImageNet but the scale's usual task and network stand here, with 32 workers and the "
    "decays of the ImageNet runs (after 30, 60 and 80 of 90 epochs); the paper's scale trains a "
    "ResNet-50 on a folder of JPEGs, which takes weeks of one GPU.",
)
STUDIES = (
    Study(LOCAL, lambda scale: jobs_of([*local_arms(scale).values()]), page_of_local),
    Study(
        POST_LOCAL, lambda scale: jobs_of([*post_local_arms(scale).values()]), page_of_post_local
    ),
    Study(LARS, lambda scale: jobs_of([*lars_arms(scale).values()]), page_of_lars),
)
