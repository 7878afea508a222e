# Cross-validation by hand: a model, an optimizer and a loader for each fold, in one process.
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(160, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
models = []
for fold in range(5):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Subset(data, [at for at in range(160) if at % 5 != fold]), batch_size=16, shuffle=True)
    for epoch in range(9):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"fold {fold} loss {loss.item():.9g}")
    models.append((model, optimizer))
