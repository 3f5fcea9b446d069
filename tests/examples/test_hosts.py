"""DPF is exact in other people's training loops: the same bits as a bare one, also across their checkpoints."""

import importlib
from itertools import chain, islice
from pathlib import Path

import pytest
import torch
from torch import nn

import regrow

EXAMPLES = Path(__file__).parents[2] / "examples"
REASON = 'the frameworks are not installed: pip install "regrow[hosts]"'
# What the frameworks say about torch, about themselves and about this machine.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def _beside_the_examples(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def example(name):
    return importlib.import_module(name)


@pytest.fixture
def plain():
    """The state of the network that the plain loop trains."""
    return example("plain_pytorch").main().state_dict()


def assert_same(state, expected):
    assert state.keys() == expected.keys()
    different = [name for name, tensor in expected.items() if not torch.equal(tensor, state[name])]
    assert not different


def test_accelerate_ends_with_the_bits_of_the_plain_loop(plain):
    pytest.importorskip("accelerate", reason=REASON)
    assert_same(example("accelerate_loop").main().state_dict(), plain)


def test_accelerate_saves_and_loads_the_pruner(tmp_path):
    pytest.importorskip("accelerate", reason=REASON)
    from accelerate import Accelerator

    def attach():
        accelerator = Accelerator()
        model = example("plain_pytorch").make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=1)
        accelerator.register_for_checkpointing(pruner)
        return accelerator, model, optimizer, pruner

    accelerator, model, optimizer, pruner = attach()
    nn.functional.cross_entropy(model(torch.randn(8, 1, 8, 8)), torch.arange(8)).backward()
    optimizer.step()
    accelerator.save_state(str(tmp_path / "state"))
    other, _, _, loaded = attach()
    other.load_state(str(tmp_path / "state"))
    assert loaded.step == 1
    assert_same(dict(loaded.weights), dict(pruner.weights))


def test_lightning_ends_with_the_bits_of_the_plain_loop(plain):
    pytest.importorskip("lightning", reason=REASON)
    assert_same(example("lightning_fit").main("here").state_dict(), plain)


@pytest.mark.parametrize("method", ["DPF", "SET"])
def test_a_lightning_run_resumes_to_the_same_bits_and_logs(method, tmp_path):
    lightning = pytest.importorskip("lightning.pytorch", reason=REASON)
    from lightning.pytorch.loggers import CSVLogger

    host, plain = example("lightning_fit"), example("plain_pytorch")

    class Classifier(host.Classifier):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            options = {"every": 16} if method == "DPF" else {"every": 7, "total_steps": 84}
            self.pruner = getattr(regrow, method)(self, optimizer, sparsity=0.8, **options)
            return optimizer

    def fit(epochs, resume=None):
        logger = CSVLogger(tmp_path / "logs")
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 10}
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", callbacks=[host.PrunerCallback()], logger=logger, **quiet
        )
        module = Classifier(plain.make_model())
        trainer.fit(module, plain_loader(), ckpt_path=resume)
        trainer.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        assert "sparsity" in Path(logger.log_dir, "metrics.csv").read_text(encoding="utf-8")
        return module

    def plain_loader():  # in order: a loader's generator is not part of Lightning's checkpoints
        return torch.utils.data.DataLoader(plain.digits("train"), batch_size=64)

    whole = fit(4)
    fit(2)
    resumed = fit(4, resume=tmp_path / "2.ckpt")
    assert resumed.pruner.step == 84
    assert_same(resumed.state_dict(), whole.state_dict())
    assert_same(dict(resumed.pruner.weights), dict(whole.pruner.weights))


def test_lightning_says_where_it_looked_for_the_pruner():
    lightning = pytest.importorskip("lightning.pytorch", reason=REASON)
    host, plain = example("lightning_fit"), example("plain_pytorch")

    class Forgetful(host.Classifier):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(max_steps=1, accelerator="cpu", callbacks=[host.PrunerCallback()], logger=False)
    with pytest.raises(AttributeError, match=r"Forgetful.pruner must be a pruner, it is None"):
        trainer.fit(Forgetful(plain.make_model()), plain.make_loader())


HF = {"max_steps": 40, "train_sampling_strategy": "sequential", "disable_tqdm": True, "logging_steps": 10}


def test_the_hugging_face_trainer_ends_with_the_bits_of_a_bare_loop():
    pytest.importorskip("transformers", reason=REASON)
    host = example("huggingface_trainer")
    trained = host.main("here", lr_scheduler_type="constant", **HF)

    model = host.make_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0, fused=True)
    regrow.DPF(model, optimizer, sparsity=regrow.Cubic(0.8, end=150))
    loader = torch.utils.data.DataLoader(host.Digits("train"), batch_size=64)
    for batch in islice(chain(loader, loader), 40):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert_same(trained.state_dict(), model.state_dict())


def test_a_hugging_face_run_resumes_to_the_same_bits_and_logs(capsys):
    pytest.importorskip("transformers", reason=REASON)
    host = example("huggingface_trainer")
    whole = host.main("whole", save_steps=20, **HF)
    assert "'sparsity':" in capsys.readouterr().out
    assert '"delta"' in Path("whole/checkpoint-40/trainer_state.json").read_text(encoding="utf-8")
    resumed = host.main("whole", resume="whole/checkpoint-20", **HF)
    assert_same(resumed.state_dict(), whole.state_dict())


def test_a_hugging_face_checkpoint_without_its_pruner_is_refused():
    pytest.importorskip("transformers", reason=REASON)
    host = example("huggingface_trainer")
    host.main("whole", save_steps=20, **HF)
    Path("whole/checkpoint-20/pruner.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"pruner.pt is missing: resume from"):
        host.main("whole", resume="whole/checkpoint-20", **HF)
