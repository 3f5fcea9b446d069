"""TensorBoard gets the curves of a run once."""

import time

import pytest

from regrow.train.events import TensorBoard, has_tensorboard
from regrow.train.run import run
from tests.train.test_run import QUICK

pytestmark = pytest.mark.skipif(not has_tensorboard(), reason="tensorboard is not installed")


def curve(folder, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(name)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_events_of_a_resumed_run_equal_those_of_an_uninterrupted_one(tmp_path):
    class EnoughError(Exception):
        pass

    def leave(event):
        if getattr(event, "step", 0) == 8:
            raise EnoughError

    watcher = TensorBoard()
    with pytest.raises(EnoughError):
        run(QUICK, tmp_path / "run", listeners=[watcher, leave])
    watcher.close()
    time.sleep(1)  # event files are ordered by the second in which they were begun
    result = run(QUICK, tmp_path / "run", listeners=[TensorBoard()])
    top1 = curve(tmp_path / "run", "top1")
    assert list(top1) == [1, 2, 3]
    assert top1[3] == pytest.approx(result["top1"])
    assert list(curve(tmp_path / "run", "layers/conv3.weight")) == [1, 2, 3]
