# In the manner of the DCGAN example of pytorch/examples: two networks, two optimizers, and three backward passes a step.
import argparse

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--niter", type=int, default=2)
parser.add_argument("--size", type=int, default=320)
parser.add_argument("--batchSize", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.0002)
parser.add_argument("--outf", default=".")
opt = parser.parse_args()

torch.manual_seed(9)
nz, real_label, fake_label = 8, 1, 0
dataset = TensorDataset(torch.randn(opt.size, 1, 8, 8).clamp(-1, 1))
dataloader = DataLoader(dataset, batch_size=opt.batchSize, shuffle=True)
netG = nn.Sequential(nn.Linear(nz, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Unflatten(1, (1, 8, 8)))
netD = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1), nn.Sigmoid())
criterion = nn.BCELoss()
optimizerD = optim.Adam(netD.parameters(), lr=opt.lr, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=opt.lr, betas=(0.5, 0.999))

for epoch in range(opt.niter):
    for i, data in enumerate(dataloader, 0):
        # update the discriminator with real and with generated images
        netD.zero_grad()
        real = data[0]
        label = torch.full((real.size(0),), real_label, dtype=real.dtype)
        errD_real = criterion(netD(real).view(-1), label)
        errD_real.backward()
        fake = netG(torch.randn(real.size(0), nz))
        label.fill_(fake_label)
        errD_fake = criterion(netD(fake.detach()).view(-1), label)
        errD_fake.backward()
        errD = errD_real + errD_fake
        optimizerD.step()

        # update the generator
        netG.zero_grad()
        label.fill_(real_label)
        errG = criterion(netD(fake).view(-1), label)
        errG.backward()
        optimizerG.step()
        print(f"[{epoch}/{opt.niter}][{i}/{len(dataloader)}] Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f}")
    torch.save(netG.state_dict(), f"{opt.outf}/netG.pth")
