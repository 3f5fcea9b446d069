"""A small transformer whose linear layers are pruned twice: to 80 % anywhere, and to 2 of 4 neighbors."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import regrow

STEPS, SYMBOLS, LENGTH = 200, 8, 6


def reversal(count: int, seed: int) -> TensorDataset:
    """Return random sequences and what the network has to say about them: the sequence backwards."""
    sequences = torch.randint(SYMBOLS, (count, LENGTH), generator=torch.Generator().manual_seed(seed))
    return TensorDataset(sequences, sequences.flip(1))


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        # nn.MultiheadAttention holds a bare parameter, in_proj_weight, which targets=... would have to name.
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, width)
        self.position = nn.Parameter(0.1 * torch.randn(LENGTH, width))
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(x) + self.position))


def train(unit: str, sparsity: float) -> Transformer:
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    pruner = regrow.DPF(model, optimizer, sparsity=regrow.Cubic(sparsity, end=STEPS // 2), unit=unit)

    model.train()
    for x, y in DataLoader(reversal(64 * STEPS, seed=0), batch_size=64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()

    x, y = reversal(500, seed=1).tensors
    model.eval()
    with torch.no_grad():
        right = (model(x).argmax(-1) == y).float().mean()
    print(f"unit {unit}: sparsity {100 * pruner.sparsity:.1f} %, {100 * right:.1f} % of symbols right")
    for name, fraction in pruner.stats().layers.items():
        print(f"  {name:40} {100 * fraction:5.1f} %")
    return model


if __name__ == "__main__":
    train("weight", 0.8)
    train("2:4", 0.5)
