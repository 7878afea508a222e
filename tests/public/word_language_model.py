# In the manner of the word language model of pytorch/examples: an LSTM, and a mean loss printed per interval.
import argparse
import math
import os
import time
from pydoc_data.topics import topics

import torch
import torch.nn as nn

parser = argparse.ArgumentParser(description="PyTorch RNN/LSTM Language Model")
parser.add_argument("--emsize", type=int, default=32)
parser.add_argument("--nhid", type=int, default=32)
parser.add_argument("--lr", type=float, default=20)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch_size", type=int, default=20)
parser.add_argument("--bptt", type=int, default=35)
parser.add_argument("--words", type=int, default=12000)
parser.add_argument("--log-interval", type=int, default=1)
parser.add_argument("--save", type=str, default="model.pt")
args = parser.parse_args()
torch.manual_seed(1111)

words = " ".join(topics.values()).split()[: args.words]
index = {word: number for number, word in enumerate(dict.fromkeys(words))}
ids = torch.tensor([index[word] for word in words])


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous()


train_data, val_data = batchify(ids[:-2000], args.batch_size), batchify(ids[-2000:], 10)


class RNNModel(nn.Module):
    def __init__(self, ntoken):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, args.emsize)
        self.rnn = nn.LSTM(args.emsize, args.nhid)
        self.decoder = nn.Linear(args.nhid, ntoken)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.encoder(input), hidden)
        return self.decoder(output).flatten(0, 1), hidden

    def init_hidden(self, bsz):
        return torch.zeros(1, bsz, args.nhid), torch.zeros(1, bsz, args.nhid)


model = RNNModel(len(index))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


def evaluate(data_source):
    model.eval()
    total_loss, hidden = 0.0, model.init_hidden(10)
    with torch.no_grad():
        for i in range(0, data_source.size(0) - 1, args.bptt):
            data, targets = get_batch(data_source, i)
            output, hidden = model(data, hidden)
            total_loss += len(data) * criterion(output, targets).item()
    return total_loss / (len(data_source) - 1)


def train(epoch):
    model.train()
    total_loss, start_time, hidden = 0.0, time.time(), model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, args.bptt)):
        data, targets = get_batch(train_data, i)
        optimizer.zero_grad()
        hidden = tuple(state.detach() for state in hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        total_loss += loss.item()
        if (batch + 1) % args.log_interval == 0:
            cur_loss, elapsed = total_loss / args.log_interval, time.time() - start_time
            print(
                f"| epoch {epoch:3d} | {batch:5d}/{len(train_data) // args.bptt:5d} batches "
                f"| ms/batch {elapsed * 1000 / args.log_interval:5.2f} | loss {cur_loss:5.4f} | ppl {math.exp(cur_loss):8.2f}"
            )
            total_loss, start_time = 0.0, time.time()


for epoch in range(1, args.epochs + 1):
    train(epoch)
    print(f"| end of epoch {epoch:3d} | valid loss {evaluate(val_data):5.4f}")
    os.makedirs(os.path.dirname(args.save) or ".", exist_ok=True)
    torch.save(model.state_dict(), args.save)
