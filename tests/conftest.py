"""One thread per test process: the cores belong to the test runner, and no result depends on their number."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

import torch

torch.set_num_threads(1)
