"""Training the small MLP over pooled hidden states; predicting with it takes no torch."""

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

HIDDEN = 64
STEPS = 300
RATE = 3e-3
DECAY = 1e-2


def train_classifier(
    states: npt.NDArray[np.float32], bins: npt.NDArray[np.int64], seed: int = 0
) -> dict[str, npt.NDArray[np.float32]]:
    """Weights by name, with the centre and spread that states are standardised by."""
    centre, spread = states.mean(axis=0), states.std(axis=0) + 1e-6
    inputs, targets = torch.from_numpy((states - centre) / spread), torch.from_numpy(bins)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        mlp = nn.Sequential(nn.Linear(states.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, int(bins.max()) + 1))
    optimizer = torch.optim.AdamW(mlp.parameters(), lr=RATE, weight_decay=DECAY)
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(mlp(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    weights = {name: values.detach().numpy() for name, values in mlp.state_dict().items()}
    return weights | {"centre": centre, "spread": spread}
