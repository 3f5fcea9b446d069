"""Hugging Face Trainer: let it create its optimizer, attach, train. Here it is a small ConvNeXt on digits."""

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import ConvNextConfig, ConvNextForImageClassification, Trainer, TrainingArguments

import regrow
from regrow import data
from regrow.hf import watch


class Digits(Dataset):
    def __init__(self, split: str) -> None:
        part = data.load("digits", split)
        self.images, self.labels = part.images.float() / 240, part.labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


def make_model() -> ConvNextForImageClassification:
    torch.manual_seed(0)
    shape = {"patch_size": 2, "num_stages": 2, "hidden_sizes": [32, 64], "depths": [1, 1]}
    return ConvNextForImageClassification(
        ConvNextConfig(num_channels=1, num_labels=10, layer_scale_init_value=1.0, **shape)
    )


def accuracy(model: ConvNextForImageClassification) -> float:
    test = Digits("test")
    model.eval()
    with torch.no_grad():
        return 100 * (model(test.images).logits.argmax(1) == test.labels).float().mean().item()


def main(folder: str = "runs/huggingface", resume: bool = False, **arguments: object) -> ConvNextForImageClassification:
    training = {"max_steps": 300, "per_device_train_batch_size": 64, "learning_rate": 3e-3, "logging_steps": 50}
    trainer = Trainer(
        make_model(),
        TrainingArguments(folder, report_to="none", use_cpu=True, **(training | arguments)),
        train_dataset=Digits("train"),
    )
    pruner = regrow.DPF(trainer.model, trainer.create_optimizer(), sparsity=regrow.Cubic(0.8, end=150))
    watch(trainer, pruner)  # logs sparsity, and puts the pruner into checkpoints
    trainer.train(resume_from_checkpoint=resume)
    print(f"sparsity {100 * pruner.sparsity:.1f} %, test accuracy {accuracy(trainer.model):.1f} %")
    return trainer.model


if __name__ == "__main__":
    main()
