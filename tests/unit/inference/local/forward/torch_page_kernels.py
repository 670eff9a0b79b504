"""The kernels over pages in operations of torch: slow, and plain enough to be the judge of those of a device."""

import torch
from torch import Tensor

from inference.local.kv.pages import Pages


def slots_of(pages: Pages, token: int, positions: Tensor) -> Tensor:
    """The slots, [heads, positions], of a token's row."""
    size = int(pages.sizes[token])
    page = pages.table[token].long()[positions // size]
    heads = torch.arange(pages.heads)[:, None]
    return (page * pages.heads + heads) * size + positions % size


class TorchKernels:
    def write(
        self, states: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, pages: Pages, positions: Tensor
    ) -> Tensor:
        tokens, count, dim = states.shape
        rotated = states[:, : count - pages.heads]
        cos, sin = cos.view(tokens, 1, dim), sin.view(tokens, 1, dim)
        rotated = rotated * cos + rotated.roll(dim // 2, -1) * sin
        for token, position in enumerate(positions.tolist()):
            if position >= 0:
                at = slots_of(pages, token, torch.tensor([position]))[:, 0]
                keys[at], values[at] = rotated[token, -pages.heads :], states[token, -pages.heads :]
        return rotated[:, : -pages.heads]

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, pages: Pages, positions: Tensor) -> Tensor:
        tokens, heads, dim = queries.shape
        found = torch.zeros_like(queries)
        for token, position in enumerate(positions.tolist()):
            if position >= 0:
                at = slots_of(pages, token, torch.arange(position + 1))
                of_head = queries[token].view(pages.heads, -1, dim)
                weights = (of_head @ keys[at].transpose(1, 2) * dim**-0.5).softmax(-1)
                found[token] = (weights @ values[at]).view(heads, dim)
        return found.view(tokens, -1)
