# SPDX-License-Identifier: Apache-2.0
"""A decoding model: small batches, low latency, and two micro-batches, of which one computes while
the other's rows are on their way.

    python examples/python/decode_loop.py
    torchrun --nproc_per_node 8 examples/python/decode_loop.py

Every layer of every step is compared with the same experts applied to the same tokens on this rank
alone.
"""

import sys

import torch

import tern
from ranks import close_to, run

SHARE, TOPK, TOKENS, HIDDEN, LAYERS, STEPS = 2, 2, 8, 128, 2, 4  # TOKENS: of a micro-batch


class Model:
    """Weights, the same on all ranks; a rank uses its experts, and all of them to check."""

    def __init__(self, comm: tern.Communicator) -> None:
        random = torch.Generator().manual_seed(1)

        def matrices(*shape: int) -> torch.Tensor:
            made = torch.randn(LAYERS, *shape, generator=random, device="cpu") / HIDDEN**0.5
            return made.bfloat16().to(comm.device)

        num_experts = SHARE * comm.size
        self.mix = matrices(HIDDEN, HIDDEN)
        self.gate = matrices(HIDDEN, num_experts)
        self.experts = matrices(num_experts, HIDDEN, HIDDEN)
        self.mine = self.experts[:, comm.rank * SHARE : (comm.rank + 1) * SHARE]


class MicroBatch:
    """Tokens on their way through a layer, whose calls come in the order of the methods; those that
    send return at once."""

    def __init__(self, ep: tern.EP, model: Model, lane: int) -> None:
        self.ep, self.model, self.lane = ep, model, lane
        random = torch.Generator().manual_seed(100 * ep.comm.rank + lane)
        tokens = torch.randn(TOKENS, HIDDEN, generator=random, device="cpu")
        self.tokens = tokens.bfloat16().to(ep.comm.device)
        self.worst = 0.0

    def attend(self, layer: int) -> None:
        """What stands for attention, and the gate."""
        self.layer = layer
        mixed = self.tokens.float() @ self.model.mix[layer].float()
        self.x = (mixed / mixed.pow(2).mean(1, keepdim=True).sqrt()).bfloat16()
        scores = self.x.float() @ self.model.gate[layer].float()
        self.weights, self.ids = scores.softmax(-1).topk(TOPK)

    def dispatch(self) -> None:
        """Sends tokens to their experts."""
        self.batch = self.ep.ll_dispatch(self.x, self.ids, lane=self.lane, hook=True)

    def compute(self) -> None:
        """Receives rows, and applies this rank's experts; what lies behind an expert's rows goes
        nowhere. Sends the results home."""
        self.batch.hook()
        y = torch.bmm(self.batch.x.float(), self.model.mine[self.layer].float()).bfloat16()
        self.sums, self.receive = self.ep.ll_combine(self.batch, y, self.weights, hook=True)

    def finish(self) -> None:
        """Receives the sums."""
        self.receive()
        matrices = self.model.experts[self.layer].float()[self.ids]  # [tokens, topk, in, out]
        rows = torch.einsum("th,tkhg->tkg", self.x.float(), matrices)
        wanted = (rows * self.weights[:, :, None]).sum(1)
        self.worst = max(self.worst, close_to(self.sums, wanted, f"layer {self.layer}"))
        self.tokens = (self.tokens.float() + self.sums.float()).bfloat16()


def decode(comm: tern.Communicator) -> None:
    shape = dict(num_experts=SHARE * comm.size, max_topk=TOPK, ll_tokens=TOKENS, ll_hidden=HIDDEN)
    with tern.EP(comm, ll_lanes=2, **shape) as ep:
        model = Model(comm)
        a, b = MicroBatch(ep, model, 0), MicroBatch(ep, model, 1)
        routings = set()
        for _ in range(STEPS):
            for layer in range(LAYERS):
                a.attend(layer)
                a.dispatch()
                b.attend(layer)  # while the tokens of a are on their way
                b.dispatch()
                a.compute()  # while those of b are
                b.compute()  # while the results of a are
                a.finish()
                b.finish()
                routings.add(tuple(a.ids.flatten().tolist() + b.ids.flatten().tolist()))
        if len(routings) < STEPS * LAYERS:
            sys.exit("two layers had the same routing")
        sys.stdout.write(
            f"rank {comm.rank}: {STEPS} steps of {LAYERS} layers, {2 * TOKENS} tokens, each within "
            f"{100 * max(a.worst, b.worst):.2f} % of its experts' sum\n"
        )
        comm.barrier()  # nobody closes while a peer's operation waits for it


if __name__ == "__main__":
    run(decode)
