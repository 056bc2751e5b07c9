"""A GAN with two models, two optimizers and local SGD. It learns a ring in the plane.

torchrun --nproc-per-node 2 examples/ports/gan.py
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import localsgd


def build():
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    return generator, discriminator


def ring(size):
    angle = 2 * torch.pi * torch.rand(size)
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def train(generator, discriminator, generator_steps, discriminator_steps, size):
    """One step of each: (optimizer of the generator, optimizer of the discriminator)."""
    real, noise = ring(size), torch.randn(size, 4)

    discriminator_steps.zero_grad()
    fake = generator(noise).detach()
    loss = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake)).mean()
    loss.backward()
    discriminator_steps.step()

    generator_steps.zero_grad()
    F.softplus(-discriminator(generator(noise))).mean().backward()
    generator_steps.step()


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--local-steps", type=int, default=8)
    parser.add_argument("--save", default="gan")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    rank = dist.get_rank()
    generator, discriminator = build()
    g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    g = localsgd.LocalSGD(g, generator, local_steps=options.local_steps)
    d = localsgd.LocalSGD(d, discriminator, local_steps=options.local_steps)
    torch.manual_seed(1 + rank)  # each process draws its own samples
    for _ in range(options.steps):
        train(generator, discriminator, g, d, options.batch_size)
    both = nn.ModuleList([generator, discriminator])
    g.finish()
    d.finish()
    localsgd.save(options.save, both, [g, d])
    if rank == 0:
        radius = generator(torch.randn(500, 4)).norm(dim=1)
        print(f"radius {radius.mean().item():.2f}, deviation {radius.std().item():.2f}")
    return both, [g, d]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
