"""One thread and the usual signals in every test process, however the tests were started; time for slow tests."""

import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

import pytest
import torch
from hypothesis import HealthCheck, settings

# The cores belong to the test runner, and no result depends on their number.
torch.set_num_threads(1)

# Under nohup and in the background of a shell, SIGHUP and SIGINT are ignored, also by the processes that tests start.
for name, usual in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    number = getattr(signal, name, None)
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# A machine that is busy with other things makes an example slow, not wrong.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests half an hour unless they say otherwise; pyproject.toml has the limit of the others."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1800))
