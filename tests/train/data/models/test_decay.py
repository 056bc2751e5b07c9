from __future__ import annotations

import pytest
from torch import nn

from localsgd.train.data.models import batch_norm, decay_rule, no_decay
from localsgd.train.data.models.lstm import LSTM
from localsgd.train.data.models.resnet import ResNet


def test_all_batch_norms_of_resnet20_are_spared_shortcuts_included() -> None:
    net = ResNet(20, 3, 10)
    spared = batch_norm(net)
    # 19 after the 3x3 convolutions, 2 in the shortcuts; weight and bias of each.
    assert len(spared) == 2 * 21
    assert {"blocks.3.shortcut.1.weight", "norm.bias"} <= spared
    parameters = dict(net.named_parameters())
    assert spared == {n for n, p in parameters.items() if p.dim() == 1} - {"head.bias"}
    assert no_decay(net) == spared | {"head.bias"}


def test_type_decides_and_not_name() -> None:
    net = nn.ModuleDict({"bn": nn.Linear(2, 2), "plain": nn.BatchNorm1d(2)})
    assert batch_norm(net) == {"plain.weight", "plain.bias"}
    assert batch_norm(nn.BatchNorm2d(3)) == {"weight", "bias"}
    assert batch_norm(nn.BatchNorm2d(3, affine=False)) == set()
    assert batch_norm(nn.LayerNorm(3)) == set()


class OwnNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(3, 3, bias=False).weight


@pytest.mark.parametrize(
    ("module", "kept"),
    [
        (nn.LayerNorm(3), set()),
        (nn.RMSNorm(3), set()),
        (nn.GroupNorm(1, 3), set()),
        (nn.InstanceNorm1d(3, affine=True), set()),
        (nn.Embedding(5, 3), set()),
        (OwnNorm(), set()),
        (nn.Linear(3, 3), {"weight"}),
        (
            nn.MultiheadAttention(4, 2, add_bias_kv=True),
            {"in_proj_weight", "out_proj.weight"},
        ),
        (
            nn.TransformerEncoderLayer(4, 2, 8),
            {
                "self_attn.in_proj_weight",
                "self_attn.out_proj.weight",
                "linear1.weight",
                "linear2.weight",
            },
        ),
        (nn.LSTM(2, 3), {"weight_ih_l0", "weight_hh_l0"}),
    ],
)
def test_what_is_usually_decayed_is_a_matrix_that_multiplies(
    module: nn.Module, kept: set[str]
) -> None:
    assert {name for name, _ in module.named_parameters()} - no_decay(module) == kept


def test_weights_that_an_embedding_shares_are_spared_whoever_comes_first() -> None:
    for order in (["head", "embedding"], ["embedding", "head"]):
        parts = {"embedding": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)}
        parts["head"].weight = parts["embedding"].weight  # type: ignore[assignment]
        net = nn.ModuleDict({name: parts[name] for name in order})
        assert no_decay(net) == {name for name, _ in net.named_parameters()}


def test_models_of_the_package_keep_the_papers_rule() -> None:
    assert decay_rule("auto", "resnet20") is batch_norm
    assert decay_rule("auto", "mlp-3") is batch_norm
    assert decay_rule("auto", "somebodys") is no_decay
    assert decay_rule("auto", None) is no_decay
    assert decay_rule("usual", "resnet20") is no_decay
    assert decay_rule("nothing", None)(LSTM(5, 1, 2)) == set()
