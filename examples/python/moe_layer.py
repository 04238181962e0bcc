# SPDX-License-Identifier: Apache-2.0
"""A mixture-of-experts layer that trains: experts are spread over the ranks, every rank has tokens
of its own and a copy of the gate.

    python examples/python/moe_layer.py
    torchrun --nproc_per_node 8 examples/python/moe_layer.py

The gradients of the first step are compared with those of the same layer on one process, which has
all experts and all ranks' tokens; then some steps are trained.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

import tern
from ranks import close_to, run

SHARE, TOPK, TOKENS, HIDDEN, INNER, STEPS = 2, 2, 32, 64, 128, 8  # SHARE: experts a rank


class Expert(nn.Module):
    """The same weights for the same number, wherever it is made."""

    def __init__(self, number: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(number)
        up = torch.randn(HIDDEN, INNER, generator=random, device="cpu")
        down = torch.randn(INNER, HIDDEN, generator=random, device="cpu")
        self.up, self.down = nn.Parameter(up / HIDDEN**0.5), nn.Parameter(down / INNER**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(x.float() @ self.up) @ self.down


class Gate(nn.Module):
    def __init__(self, num_experts: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(1000)
        self.weight = nn.Parameter(torch.randn(HIDDEN, num_experts, generator=random, device="cpu"))

    def forward(self, x: torch.Tensor) -> "tuple[torch.Tensor, torch.Tensor]":
        return (x.float() @ self.weight).softmax(-1).topk(TOPK)


class Layer(nn.Module):
    """Experts of all ranks, of which this rank has its share."""

    def __init__(self, ep: tern.EP) -> None:
        super().__init__()
        self.ep, first = ep, ep.comm.rank * SHARE
        self.gate = Gate(ep.num_experts)
        self.experts = nn.ModuleList(Expert(first + e) for e in range(SHARE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, ids = self.gate(x)
        route = self.ep.route(ids, layout="expert")
        rows = route.dispatch(x, weights)  # grouped by local expert, with the weight of each row
        parts = rows.x.split(route.counts.expert_counts)
        y = torch.cat([expert(part) for expert, part in zip(self.experts, parts)])
        return route.combine((y * rows.topk_weights[:, None]).bfloat16()).x


class Dense(nn.Module):
    """The same on one process: every expert sees every token, and most are weighted by 0."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.gate = Gate(num_experts)
        self.experts = nn.ModuleList(Expert(e) for e in range(num_experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, ids = self.gate(x)
        of_expert = torch.zeros_like(x.float() @ self.gate.weight).scatter(1, ids, weights)
        return sum(of_expert[:, e, None] * expert(x) for e, expert in enumerate(self.experts))


def tokens_of(rank: int, device: torch.device) -> torch.Tensor:
    random = torch.Generator().manual_seed(2000 + rank)
    x = torch.randn(TOKENS, HIDDEN, generator=random, device="cpu").bfloat16()
    return x.to(device).requires_grad_()


def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """To learn: each token, turned by one channel."""
    return (y.float() - x.detach().float().roll(1, 1)).pow(2).sum()


def step(layer: Layer, x: torch.Tensor) -> float:
    """Forward and backward; the loss of all ranks."""
    layer.zero_grad()
    loss = loss_of(x, layer(x))
    loss.backward()  # collective: combine dispatches on its way back, dispatch combines
    told = torch.stack([loss.detach().cpu()])
    dist.all_reduce(told)
    # Every rank has a gate: its gradient is the sum of theirs. An expert is on one rank only, and
    # what came back to it along the route is all of its gradient.
    of_gate = layer.gate.weight.grad.cpu()
    dist.all_reduce(of_gate)
    layer.gate.weight.grad.copy_(of_gate)
    return float(told)


def train(comm: tern.Communicator) -> None:
    num_experts = SHARE * comm.size
    shape = dict(num_experts=num_experts, max_topk=TOPK, max_tokens=TOKENS, hidden=HIDDEN)
    with tern.EP(comm, **shape) as ep:
        layer = Layer(ep).to(comm.device)
        x = tokens_of(comm.rank, comm.device)
        losses = [step(layer, x)]

        dense = Dense(num_experts).to(comm.device)
        every = [tokens_of(rank, comm.device) for rank in range(comm.size)]
        sum(loss_of(t, dense(t)) for t in every).backward()
        errors = [
            close_to(x.grad, every[comm.rank].grad, "the tokens' gradient"),
            close_to(layer.gate.weight.grad, dense.gate.weight.grad, "the gate's gradient"),
        ]
        for e, expert in enumerate(layer.experts):
            same = dense.experts[comm.rank * SHARE + e]
            errors.append(close_to(expert.up.grad, same.up.grad, f"gradient of expert {e}, up"))
            errors.append(close_to(expert.down.grad, same.down.grad, f"of expert {e}, down"))

        optimizer = torch.optim.Adam(layer.parameters(), lr=0.003)
        for _ in range(STEPS):
            optimizer.step()
            losses.append(step(layer, x))
        if not losses[-1] < 0.8 * losses[0]:
            sys.exit(f"the loss does not fall: {losses}")
        sys.stdout.write(
            f"rank {comm.rank}: gradients within {100 * max(errors):.2f} % of the dense layer's, "
            f"loss {losses[0]:.0f} to {losses[-1]:.0f}\n"
        )
        comm.barrier()  # nobody closes while a peer's operation waits for it


if __name__ == "__main__":
    run(train)
