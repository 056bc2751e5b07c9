"""A small GPT with DDP: gradient accumulation, AdamW, clipping, a cosine, `torch.compile`.

torchrun --nproc-per-node 2 examples/ports/gpt_before.py
"""

import argparse
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CONTEXT, WIDTH, HEADS, LAYERS, VOCABULARY = 32, 48, 4, 2, 128


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (p.unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def text():
    """PyTorch's own source, which needs no download."""
    source = Path(torch.nn.functional.__file__).read_bytes()[:200_000]
    return torch.tensor(list(source)).clamp(max=VOCABULARY - 1)


def batch(tokens, rank, number, size):
    generator = torch.Generator().manual_seed(1_000_000 * rank + number)
    starts = torch.randint(len(tokens) - CONTEXT - 1, (size,), generator=generator)
    rows = torch.stack([tokens[start : start + CONTEXT + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def groups(model):
    """Weight decay for matrices alone."""
    parameters = list(model.parameters())
    matrices = [p for p in parameters if p.dim() > 1]
    vectors = [p for p in parameters if p.dim() < 2]
    return [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    rank = dist.get_rank()
    tokens = text()
    gpt = GPT()
    model = torch.compile(gpt) if options.compile else gpt
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(groups(gpt), lr=options.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    for step in range(options.steps):
        optimizer.zero_grad()
        for part in range(options.accumulate):
            number = step * options.accumulate + part
            with model.no_sync() if part + 1 < options.accumulate else nullcontext():
                loss = model(*batch(tokens, rank, number, options.batch_size))
                (loss / options.accumulate).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: training loss {loss.item():.3f}")
    return model, [optimizer]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
