"""Training the small MLP that classifies pooled hidden states. Predicting with it takes numpy only, no torch."""

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

# The paper gives no architecture and no training schedule for its MLP (Sequence Scheduling, Table 3). More units and
# steps follow the training answers more closely, a larger decay less closely; no value was tuned.
HIDDEN_UNITS = 64
STEPS = 300
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-2


def train_classifier(
    states: npt.NDArray[np.float32], bins: npt.NDArray[np.int64], seed: int = 0
) -> dict[str, npt.NDArray[np.float32]]:
    """Weights by name, with the `centre` and `spread` that states (prompts, hidden size) are standardised by."""
    centre, spread = states.mean(axis=0), states.std(axis=0) + 1e-6
    inputs, targets = torch.from_numpy((states - centre) / spread), torch.from_numpy(bins)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        mlp = nn.Sequential(
            nn.Linear(states.shape[1], HIDDEN_UNITS), nn.ReLU(), nn.Linear(HIDDEN_UNITS, int(bins.max()) + 1)
        )
    optimizer = torch.optim.AdamW(mlp.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(mlp(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    weights = {name: values.detach().numpy() for name, values in mlp.state_dict().items()}
    return weights | {"centre": centre, "spread": spread}
