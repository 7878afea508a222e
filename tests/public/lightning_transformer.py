# In the manner of Lightning's transformer example, with manual optimization: one optimizer for embeddings, one for the rest.
import argparse
from pydoc_data.topics import topics

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Characters(Dataset):
    def __init__(self, first, size, block=16):
        text = "\n\n".join(topics.values()).lower()
        vocabulary = sorted(set(text))
        self.vocab_size = len(vocabulary)
        code = {character: index for index, character in enumerate(vocabulary)}
        self.data = torch.tensor([code[character] for character in text[first * block : (first + size) * block + 1]])
        self.size, self.block = size, block

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        piece = self.data[index * self.block : (index + 1) * self.block + 1]
        return piece[:-1], piece[1:]


class LanguageModel(L.LightningModule):
    def __init__(self, vocab_size, lr):
        super().__init__()
        self.automatic_optimization = False
        self.save_hyperparameters()
        self.embedding = nn.Embedding(vocab_size, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, vocab_size)

    def forward(self, inputs):
        mask = nn.Transformer.generate_square_subsequent_mask(inputs.size(1), device=inputs.device)
        return self.head(self.layer(self.embedding(inputs), src_mask=mask))

    def loss(self, batch):
        inputs, target = batch
        return F.cross_entropy(self(inputs).flatten(0, 1), target.flatten())

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        optimizers = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            self.clip_gradients(optimizer, gradient_clip_val=0.25, gradient_clip_algorithm="norm")
            optimizer.step()
        self.log("train_loss", loss)
        print(f"batch {batch_idx}: {loss.item():.6f}")
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.loss(batch))

    def configure_optimizers(self):
        rest = [*self.layer.parameters(), *self.head.parameters()]
        return torch.optim.SGD(self.embedding.parameters(), lr=self.hparams.lr), torch.optim.Adam(rest, lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_epochs", type=int, default=4)
    parser.add_argument("--size", type=int, default=1600)
    parser.add_argument("--lr", type=float, default=20.0)
    args = parser.parse_args()
    L.seed_everything(42)
    dataset = Characters(0, args.size)
    model = LanguageModel(vocab_size=dataset.vocab_size, lr=args.lr)
    trainer = L.Trainer(max_epochs=args.max_epochs, accelerator="cpu", enable_progress_bar=False, logger=False)
    trainer.fit(model, DataLoader(dataset, 16, shuffle=True), DataLoader(Characters(2000, 160), 16))
    print(f"val_loss {trainer.callback_metrics['val_loss']:.6f}")
    (tested,) = trainer.test(model, DataLoader(Characters(2200, 160), 16), verbose=False)
    print(f"test_loss {tested['test_loss']:.6f}")


if __name__ == "__main__":
    main()
