"""As sentence-transformers' training_nli: its trainer, MultipleNegativesRankingLoss, pairs of made-up sentences."""

import argparse
import tempfile

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, set_seed


def encoder():
    words = {"[PAD]": 0, "[UNK]": 1} | {f"w{number}": number for number in range(2, 100)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    config = BertConfig(
        vocab_size=100,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with tempfile.TemporaryDirectory() as folder:
        BertModel(config).save_pretrained(folder)
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=32
        ).save_pretrained(folder)
        words = Transformer(folder)
    return SentenceTransformer(modules=[words, Pooling(16)], device="cpu")


def pairs(count):
    words = torch.randint(2, 100, (count, 2, 8), generator=torch.Generator().manual_seed(1)).tolist()
    rows = [[" ".join(f"w{word}" for word in sentence) for sentence in pair] for pair in words]
    return Dataset.from_dict({"anchor": [row[0] for row in rows], "positive": [row[1] for row in rows]})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gather", action="store_true")
    asked = parser.parse_args()
    set_seed(0)
    model = encoder()
    arguments = SentenceTransformerTrainingArguments(
        output_dir="out", per_device_train_batch_size=8, num_train_epochs=1, report_to="none", use_cpu=True
    )
    loss = MultipleNegativesRankingLoss(model, gather_across_devices=asked.gather)
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=pairs(64), loss=loss).train()
