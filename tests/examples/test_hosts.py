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
    Path("whole/checkpoint-20/pruner.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"pruner.safetensors is missing: resume from"):
        host.main("whole", resume="whole/checkpoint-20", **HF)


class Recorded:
    """A tracker of the shape of a Weights & Biases run."""

    def __init__(self):
        self.calls = []

    def log(self, data, *, step):
        self.calls.append((step, data))


def hugging_face(folder, *, resume=None, tracker=None, **options):
    """Train with the callback alone; return the trainer and the callback."""
    from transformers import Trainer, TrainingArguments

    from regrow.hf import PrunerCallback

    host = example("huggingface_trainer")
    callback = PrunerCallback("dpf", sparsity=0.9, tracker=tracker, **options)
    arguments = TrainingArguments(
        folder, report_to="none", use_cpu=True, per_device_train_batch_size=64, save_steps=20, **HF
    )
    trainer = Trainer(host.make_model(), arguments, train_dataset=host.Digits("train"), callbacks=[callback])
    trainer.train(resume_from_checkpoint=resume)
    return trainer, callback


def test_a_hugging_face_callback_attaches_ramps_and_resumes_to_the_same_bits(capsys):
    pytest.importorskip("transformers", reason=REASON)
    tracker = Recorded()
    whole, callback = hugging_face("whole", tracker=tracker)
    assert callback.pruner.schedule == regrow.Cubic(0.9, end=30)
    assert callback.pruner.sparsity == pytest.approx(0.9, abs=1e-3)
    assert "'sparsity':" in capsys.readouterr().out
    assert [step for step, _ in tracker.calls][:4] == [10, 20, 30, 40]
    assert tracker.calls[2][1]["sparsity"] == pytest.approx(0.9, abs=1e-3)
    resumed, again = hugging_face("whole", resume="whole/checkpoint-20")
    assert again.pruner.step == 40
    assert_same(resumed.model.state_dict(), whole.model.state_dict())
    assert_same(dict(again.pruner.weights), dict(callback.pruner.weights))


def test_a_packed_pretrained_model_comes_back_bit_for_bit(tmp_path):
    pytest.importorskip("transformers", reason=REASON)
    from transformers import BertConfig, BertForMaskedLM

    from regrow.hf import from_pretrained, save_pretrained

    trainer, _ = hugging_face("here")
    save_pretrained(trainer.model, tmp_path / "packed")
    loaded = from_pretrained(tmp_path / "packed")
    assert type(loaded) is type(trainer.model)
    assert_same(loaded.state_dict(), trainer.model.state_dict())
    dense = 4 * sum(parameter.numel() for parameter in loaded.parameters())
    assert (tmp_path / "packed/model.regrow").stat().st_size < dense / 3

    tied = BertForMaskedLM(
        BertConfig(vocab_size=99, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    )
    save_pretrained(tied, tmp_path / "tied")
    assert len(regrow.load(tmp_path / "tied/model.regrow")) < len(tied.state_dict()), "tied weights are stored once"
    assert_same(from_pretrained(tmp_path / "tied").state_dict(), tied.state_dict())


def test_a_packed_pretrained_folder_runs_no_code_and_its_errors_name_the_problem(tmp_path):
    pytest.importorskip("transformers", reason=REASON)
    import json

    from regrow.hf import from_pretrained, save_pretrained

    with pytest.raises(FileNotFoundError, match=r"has no model.regrow"):
        from_pretrained(tmp_path)
    with pytest.raises(TypeError, match="takes a PreTrainedModel, got Linear"):
        save_pretrained(nn.Linear(1, 1), tmp_path)
    save_pretrained(example("huggingface_trainer").make_model(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "evil.py").write_text("import pathlib; pathlib.Path('imported').touch()")
    evil = {**config, "auto_map": {"AutoConfig": "evil.Config"}, "architectures": ["evil.Model"]}
    (tmp_path / "config.json").write_text(json.dumps(evil))
    with pytest.raises(ValueError, match=r"not a model of transformers|trust_remote_code"):
        from_pretrained(tmp_path)
    assert not Path("imported").exists()
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_channels": 3}))
    with pytest.raises(regrow.FormatError, match="does not fit its configuration"):
        from_pretrained(tmp_path)


def test_a_lightning_callback_prunes_an_unchanged_module(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch", reason=REASON)
    from lightning.pytorch.loggers import CSVLogger

    host, plain = example("lightning_fit"), example("plain_pytorch")

    class Plain(host.Classifier):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def fit(epochs, resume=None, tracker=None):
        callback = host.PrunerCallback("dpf", sparsity=regrow.Cubic(0.9, end=60), every=4, tracker=tracker)
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            callbacks=[callback],
            logger=CSVLogger(tmp_path / "logs"),
            log_every_n_steps=10,
            enable_progress_bar=False,
        )
        module = Plain(plain.make_model())
        loader = torch.utils.data.DataLoader(plain.digits("train"), batch_size=64)
        trainer.fit(module, loader, ckpt_path=resume)
        trainer.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        return module, callback.pruner

    tracker = Recorded()
    whole, pruner = fit(4, tracker=tracker)
    assert pruner.sparsity == pytest.approx(0.9, abs=1e-3)
    assert tracker.calls[0][0] == 10
    with pytest.warns(UserWarning, match=r"the sparsity of 90\.0% is not reached"):
        fit(2)
    resumed, again = fit(4, resume=tmp_path / "2.ckpt")
    assert again.step == 84
    assert_same(resumed.state_dict(), whole.state_dict())
    assert_same(dict(again.weights), dict(pruner.weights))


def test_a_number_ramps_over_three_quarters_of_a_lightning_training():
    lightning = pytest.importorskip("lightning.pytorch", reason=REASON)
    host, plain = example("lightning_fit"), example("plain_pytorch")

    class Plain(host.Classifier):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Two(host.Classifier):
        automatic_optimization = False

        def configure_optimizers(self):
            return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.1)]

    def fit(module, callback):
        quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "logger": False}
        lightning.Trainer(max_steps=20, accelerator="cpu", callbacks=[callback], **quiet).fit(
            module(plain.make_model()), plain.make_loader()
        )
        return callback.pruner

    assert fit(Plain, host.PrunerCallback("dpf", sparsity=0.9)).schedule == regrow.Cubic(0.9, end=15)
    assert fit(Plain, host.PrunerCallback("rigl", sparsity=0.9)).sparsity == pytest.approx(0.9, abs=0.01)
    with pytest.raises(ValueError, match="needs one optimizer, Two has 2"):
        fit(Two, host.PrunerCallback("dpf", sparsity=0.9))
    with pytest.raises(TypeError, match="options need a method"):
        host.PrunerCallback(sparsity=0.9)
