"""A tiny decoder with what makes base models hard to vectorise: grouped queries, masks, dropout, tied weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS = 11


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, groups: int):
        super().__init__()
        self.heads, self.groups, own = heads, groups, width // heads
        self.q_proj, self.o_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.k_proj, self.v_proj = nn.Linear(width, groups * own), nn.Linear(width, groups * own)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (f(x).unflatten(-1, (self.groups, -1)).transpose(1, 2) for f in (self.k_proj, self.v_proj))
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return self.o_proj(found.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.attention, self.drop = Attention(width, 4, 2), nn.Dropout(0.2)
        self.before, self.after = nn.LayerNorm(width), nn.RMSNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.before(x), mask))
        return x + self.down(functional.silu(self.up(self.after(x))))


class Decoder(nn.Module):
    """Scores of the next token [B, T, words]; token 0 is padding, which nobody attends to."""

    def __init__(self, width: int = 16, layers: int = 2):
        super().__init__()
        self.words, self.last = nn.Embedding(WORDS, width, padding_idx=0), nn.RMSNorm(width)
        self.layers, self.head = nn.ModuleList(Block(width) for _ in range(layers)), nn.Linear(width, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
        mask = ((x != 0)[:, None, None, :] & places.tril()) | places.diag().diag()
        h = self.words(x)
        for layer in self.layers:
            h = layer(h, mask)
        return self.head(self.last(h))


def texts(clients: int, each: int, length: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, the next tokens, and whose they are; the ends of some texts are padding, and a place within."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, WORDS, (clients * each, length + 1), generator=generator)
    ids[::3, -2:], ids[1, 2] = 0, 0
    owner = torch.arange(clients).repeat_interleave(each)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), owner
