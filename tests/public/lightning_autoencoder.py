# In the manner of the example in Lightning's README; instead of MNIST it takes random images, so that nothing is downloaded.
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn, optim, utils


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 28 * 28))

    def training_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        z = self.encoder(x)
        x_hat = self.decoder(z)
        loss = F.mse_loss(x_hat, x)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        self.log("val_loss", F.mse_loss(self.decoder(self.encoder(x)), x))

    def configure_optimizers(self):
        return optim.Adam(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(1)
    dataset = utils.data.TensorDataset(torch.rand(2048, 1, 28, 28), torch.zeros(2048))
    train, val = utils.data.random_split(dataset, [1792, 256])
    autoencoder = LitAutoEncoder()
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", enable_progress_bar=False)
    trainer.fit(autoencoder, utils.data.DataLoader(train, 64), utils.data.DataLoader(val, 64))
    print(f"steps {trainer.global_step}")
    for name, value in sorted(trainer.callback_metrics.items()):
        print(f"{name} {value.item():.6f}")


if __name__ == "__main__":
    main()
