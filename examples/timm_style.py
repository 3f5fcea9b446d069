"""A script in the style of timm: mixed precision, gradient scaler, clipping, warm-up and cosine, EMA, resume."""

import argparse
import math
from pathlib import Path

import torch
from plain_pytorch import accuracy, make_loader, make_model
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import regrow


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--stop-after", type=int, help="epochs after which to stop, as if interrupted")
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--output", type=Path, default=Path("runs/timm-style"))
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint in --output")
    return parser.parse_args()


def main() -> None:
    args = parse()
    model, loader = make_model().to(memory_format=torch.channels_last), make_loader()
    total = args.epochs * len(loader)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.02}, {"params": no_decay, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=5e-3, fused=True)
    warmup = 0.05 * total
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: min((t + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * t / total))
    )
    scaler = torch.amp.GradScaler("cpu")
    pruner = regrow.DPF(model, optimizer, sparsity=regrow.Cubic(args.sparsity, end=total // 2))

    parts = {"model": model, "optimizer": optimizer, "pruner": pruner}  # in this order
    parts |= {"ema": ema, "schedule": schedule, "scaler": scaler}
    args.output.mkdir(parents=True, exist_ok=True)
    checkpoint, start = args.output / "last.pt", 0
    if args.resume:
        saved = torch.load(checkpoint, weights_only=True)
        start = saved["epoch"]
        loader.generator.set_state(saved["order"])
        for name, part in parts.items():
            part.load_state_dict(saved[name])

    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in range(start, args.stop_after or args.epochs):
        model.train()
        for images, labels in loader:
            with torch.autocast("cpu", torch.bfloat16):
                loss = criterion(model(images.to(memory_format=torch.channels_last)), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            ema.update_parameters(model)
        pruner.apply_to(ema.module)  # an average over changing masks has more non-zeros than any of them
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({"epoch": epoch + 1, "order": loader.generator.get_state(), **state}, checkpoint)
        tested = f"top-1 {accuracy(model):.1f} %, of the average {accuracy(ema.module):.1f} %"
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, sparsity {100 * pruner.sparsity:.1f} %, {tested}")


if __name__ == "__main__":
    main()
