"""The handler of SIGTERM while a run trains, and afterwards."""

import signal

from transformers import TrainerControl, TrainerState, TrainingArguments

from cmlmcse.training.checkpoints import StopsAtSignal


def test_training_that_begins_twice(tmp_path) -> None:
    """Trainer may begin again within one run. Afterwards SIGTERM is handled as before the first time."""
    before, callback = signal.getsignal(signal.SIGTERM), StopsAtSignal()
    try:
        for _ in range(2):
            callback.on_train_begin(TrainingArguments(str(tmp_path), use_cpu=True), TrainerState(), TrainerControl())
            assert signal.getsignal(signal.SIGTERM) == callback.handle
        callback.restore()
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, before)
