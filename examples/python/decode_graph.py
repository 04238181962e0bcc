# SPDX-License-Identifier: Apache-2.0
"""A decoding step in a CUDA graph: captured once, replayed a thousand times, with another routing
in every layer of every step. On the CPU, which has no graphs here, the step is called.

    python examples/python/decode_graph.py [STEPS]
    torchrun --nproc_per_node 8 examples/python/decode_graph.py [STEPS]

Every layer of every step is compared with the same experts applied to the same tokens on this rank
alone.
"""

import sys
from typing import Callable, List, Tuple

import torch

import tern
from decode_loop import HIDDEN, LAYERS, SHARE, TOPK, Model
from ranks import close_to, on_gpus, run

TOKENS = 16
Layer = Tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # x, ids, weights, sums


class Decoder:
    """Tokens that each step changes where they lie, as a graph needs its inputs and outputs."""

    def __init__(self, ep: tern.EP, model: Model) -> None:
        self.ep, self.model = ep, model
        random = torch.Generator().manual_seed(100 + ep.comm.rank)
        tokens = torch.randn(TOKENS, HIDDEN, generator=random, device="cpu")
        self.tokens = tokens.bfloat16().to(ep.comm.device)

    def layer(self, number: int) -> Layer:
        """What stands for attention, the gate, and the experts."""
        mixed = self.tokens.float() @ self.model.mix[number].float()
        x = (mixed / mixed.pow(2).mean(1, keepdim=True).sqrt()).bfloat16()
        weights, ids = (x.float() @ self.model.gate[number].float()).softmax(-1).topk(TOPK)
        batch = self.ep.ll_dispatch(x, ids)
        y = torch.bmm(batch.x.float(), self.model.mine[number].float()).bfloat16()
        sums, _ = self.ep.ll_combine(batch, y, weights)
        self.tokens.copy_((self.tokens.float() / 2 + sums.float()).bfloat16())
        return x, ids, weights, sums

    def step(self) -> List[Layer]:
        return [self.layer(number) for number in range(LAYERS)]

    def check(self, number: int, layer: Layer) -> float:
        x, ids, weights, sums = layer
        matrices = self.model.experts[number].float()[ids]  # [tokens, topk, in, out]
        rows = torch.einsum("th,tkhg->tkg", x.float(), matrices)
        return close_to(sums, (rows * weights[:, :, None]).sum(1), f"layer {number}")


def captured(decoder: Decoder) -> Tuple[Callable[[], None], List[Layer]]:
    """The step's replay, and what it leaves."""
    decoder.step()  # what is made when it is first needed is not made during the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layers = decoder.step()
    return graph.replay, layers


def decode(comm: tern.Communicator) -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000 if on_gpus() else 8
    shape = dict(num_experts=SHARE * comm.size, max_topk=TOPK, ll_tokens=TOKENS, ll_hidden=HIDDEN)
    with tern.EP(comm, **shape) as ep:
        model = Model(comm)
        decoder = Decoder(ep, model)
        replay, layers = captured(decoder) if on_gpus() else (None, [])
        worst, routings = 0.0, set()
        for _ in range(steps):
            if replay:
                replay()
            else:
                layers = decoder.step()
            for number, layer in enumerate(layers):
                worst = max(worst, decoder.check(number, layer))
                routings.add(tuple(layer[1].flatten().tolist()))
        if len(routings) < steps * LAYERS // 2:  # few experts, on one rank, choose the same again
            sys.exit(f"only {len(routings)} routings in {steps} steps of {LAYERS} layers")
        ep.synchronize()
        sys.stdout.write(
            f"rank {comm.rank}: {steps} {'replays' if replay else 'steps'} of {LAYERS} layers, "
            f"{len(routings)} routings, each within {100 * worst:.2f} % of its experts' sum\n"
        )
        comm.barrier()  # nobody closes while a peer's operation waits for it


if __name__ == "__main__":
    run(decode)
