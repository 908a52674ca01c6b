"""As accelerate's nlp_example: a BERT for pairs of sentences, pads to the longest of a batch, a linear schedule."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


def made(count):
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(4, 17, (count,), generator=generator).tolist()
    return [
        {
            "input_ids": torch.randint(5, 100, (length,), generator=generator),
            "labels": int(torch.randint(0, 2, (), generator=generator)),
        }
        for length in lengths
    ]


def padded(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)
    for number, row in enumerate(rows):
        tokens[number, : len(row["input_ids"])] = row["input_ids"]
    return {
        "input_ids": tokens,
        "attention_mask": (tokens != 0).long(),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }


def train(config, asked):
    accelerator = Accelerator(cpu=asked.cpu, mixed_precision=asked.mixed_precision)
    set_seed(config["seed"])
    loader = DataLoader(made(128), shuffle=True, collate_fn=padded, batch_size=config["batch_size"], drop_last=True)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=100,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            hidden_dropout_prob=asked.dropout,
            attention_probs_dropout_prob=asked.dropout,
        )
    )
    model = model.to(accelerator.device)
    optimizer = AdamW(params=model.parameters(), lr=config["lr"])
    schedule = get_linear_schedule_with_warmup(optimizer, 2, len(loader) * config["num_epochs"])
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for _ in range(config["num_epochs"]):
        model.train()
        for batch in loader:
            batch.to(accelerator.device) if hasattr(batch, "to") else None
            outputs = model(**batch)
            accelerator.backward(outputs.loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", default=None, choices=["no", "fp16", "bf16"])
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--dropout", type=float, default=0.1)
    train({"lr": 2e-3, "num_epochs": 3, "seed": 42, "batch_size": 16}, parser.parse_args())
