"""A small GPT trained by 2 workers of 2 shards each; the lines of local SGD are marked with `# <-`.

    torchrun --nproc-per-node 4 examples/sharded.py
    torchrun --nproc-per-node 4 examples/sharded.py --data wikitext-2

Inside a worker FSDP2 shards the model, and gathers it for each pass over a fast link. Between
workers shards are averaged after 8 local steps. `--data` is the folder of WikiText-2, or a file of
text; without it the model learns Python's own manual.
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import localsgd

CONTEXT, WIDTH, HEADS, BLOCKS = 64, 64, 4, 2
BYTES = 256  # A token is a byte.


class Block(nn.Module):
    """Attention to what came before, then a perceptron: [B, T, WIDTH] to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.to_heads = nn.Linear(WIDTH, 3 * WIDTH)
        self.from_heads = nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.to_heads(self.norms[0](x)).unflatten(-1, (3, HEADS, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.from_heads(seen.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.norms[1](x))


class GPT(nn.Module):
    """Tokens [B, T] to the logits of the next ones, [B, T, BYTES]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(BYTES, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.logits = nn.Linear(WIDTH, BYTES, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))


def text_of(path: Path | None) -> Tensor:
    if path is None:
        text = "\n".join(topics.values()).encode()
    else:
        text = (path / "wiki.train.tokens" if path.is_dir() else path).read_bytes()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def batch(text: Tensor, generator: torch.Generator, size: int = 16) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - CONTEXT - 1, (size,), generator=generator)
    cut = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return cut[:, :-1], cut[:, 1:]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def train(text: Tensor, steps: int, workers: int, out: Path | None) -> float:
    """Trains on all ranks; returns the loss of the averaged model on text that it hasn't seen."""
    shards = dist.get_world_size() // workers
    names = ("replicate", "shard")
    mesh = init_device_mesh("cpu", (workers, shards), mesh_dim_names=names)  # <-

    torch.manual_seed(0)  # the same start for all
    model = GPT()
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shard"])  # <- not the whole mesh: that would be HSDP
    fully_shard(model, mesh=mesh["shard"])
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer = localsgd.LocalSGD(inner, model, local_steps=8, topology=mesh["replicate"])  # <-

    unseen = batch(text[-len(text) // 10 :], torch.Generator().manual_seed(0), 32)
    text = text[: -len(text) // 10]
    generator = torch.Generator().manual_seed(1 + dist.get_rank())  # Each rank has its own batches.

    def judged(step: int) -> float:
        with optimizer.averaged_model(), torch.no_grad():  # All ranks gather the model.
            loss = loss_of(model, *unseen).item()
        if dist.get_rank() == 0:
            print(f"step {step}: loss of the averaged model {loss:.3f}", flush=True)
        return loss

    loss = judged(0)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss_of(model, *batch(text, generator)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # by the norm of the worker's gradient
        optimizer.step()
        if step % 40 == 0 or step == steps:
            loss = judged(step)

    optimizer.finish()
    whole = {name: p.full_tensor() for name, p in model.named_parameters()}  # type: ignore
    if dist.get_rank() == 0 and out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        torch.save(whole, out)
    return loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", type=Path, help="a file to learn, or WikiText-2's folder")
    parser.add_argument("--out", type=Path, default=Path("runs/sharded/model.pt"))
    options = parser.parse_args()
    dist.init_process_group("gloo")
    train(text_of(options.data), options.steps, options.workers, options.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
