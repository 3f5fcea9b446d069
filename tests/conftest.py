"""One thread per test process: the cores belong to the test runner, and no result depends on their number."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

# A machine that is busy with other things makes an example slow, not wrong.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
