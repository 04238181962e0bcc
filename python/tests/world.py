# SPDX-License-Identifier: Apache-2.0
"""One rank of a world of processes over gloo, which runs a test module as all of them do: world.py
MODULE RANK SIZE FOLDER. What became of each test goes to FOLDER/result.RANK. Also what the tests
share."""

import json
import os
import sys
import unittest
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

import tern

TIMEOUT_MS = 60000
DEVICE = os.environ.get("TERN_TEST_DEVICE", "cpu")  # or cuda: then a rank has the GPU of its number


class RankTest(unittest.TestCase):
    """A test that every rank runs, with a communicator of its own."""

    options: dict = {}

    def setUp(self):
        self.comm = tern.Communicator.from_torch(
            **{"machine": DEVICE, "timeout_ms": TIMEOUT_MS, **self.options}
        )
        self.rank, self.size = self.comm.rank, self.comm.size

    def tearDown(self):
        self.comm.close()

    def close(self, ep):
        """Closes an object when nobody waits for this rank any more."""
        self.comm.barrier()
        ep.close()

    def same(self, tensor, wanted, what=""):
        """Bit for bit. wanted: numpy; floats, for a BF16 tensor, that are BF16."""
        have = values(tensor)
        if have.dtype == np.float32:
            have, wanted = have.view(np.uint32), np.asarray(wanted, np.float32).view(np.uint32)
        self.assertEqual(have.shape, np.shape(wanted), what)
        wrong = np.argwhere(have != wanted)
        self.assertEqual(len(wrong), 0, f"{what}: first at {wrong[0] if len(wrong) else None}")


def generator(seed):
    return torch.Generator(DEVICE).manual_seed(seed)


def values(tensor):
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()


def batch(rank, tokens=24, hidden=256, experts=8, topk=2, seed=1):
    """A rank's tokens (BF16), ids with some -1, and weights; any rank can make any other's."""
    random = np.random.default_rng([seed, rank])
    ids = np.argsort(random.random((tokens, experts)), axis=1)[:, :topk].astype(np.int64)
    ids[random.random(ids.shape) < 0.1] = -1
    x = torch.from_numpy(random.standard_normal((tokens, hidden)).astype(np.float32)).bfloat16()
    return (
        x,
        torch.from_numpy(ids),
        torch.from_numpy(random.random((tokens, topk)).astype(np.float32)),
    )


class Record(unittest.TestResult):
    """[name, outcome, text] of every test."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def add(self, test, outcome, text=""):
        self.lines.append([test.id().rpartition(".")[2], outcome, text])

    def addSuccess(self, test):
        self.add(test, "ok")

    def addFailure(self, test, error):
        self.add(test, "not ok", self._exc_info_to_string(error, test))

    addError = addFailure

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.add(test, "not ok", f"{subtest}: {self._exc_info_to_string(error, test)}")

    def addSkip(self, test, reason):
        self.add(test, "skip", reason)


def on_gpu(number):
    """Tensors that tests make are the GPU's, and NumPy sees them as it sees those of the CPU."""
    to_numpy, from_numpy = torch.Tensor.numpy, torch.from_numpy
    torch.cuda.set_device(number)
    torch.set_default_device("cuda")
    torch.Tensor.numpy = lambda self: to_numpy(self.cpu())
    torch.from_numpy = lambda array: from_numpy(array).cuda()


def main(module, rank, size, folder):
    sys.modules["world"] = sys.modules["__main__"]
    torch.set_num_threads(1)
    os.environ.setdefault("TERN_TIMEOUT_MS", str(TIMEOUT_MS))  # of what takes the default
    if DEVICE == "cuda":
        on_gpu(rank % torch.cuda.device_count())
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=120),
    )
    record = Record()
    unittest.defaultTestLoader.loadTestsFromName(module).run(record)
    with open(f"{folder}/result.{rank}", "w") as file:
        json.dump(record.lines, file)
    sys.stdout.flush()
    os._exit(0)  # gloo's own end may wait for ranks that are gone


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
