"""As transformers' run_clm: text cut into blocks, a tiny Llama from its config, `Trainer` with its arguments."""

import torch
from torch.utils.data import Dataset
from transformers import (
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


class Blocks(Dataset):
    def __init__(self, count, block):
        text = torch.randint(0, 96, (count * block,), generator=torch.Generator().manual_seed(0))
        self.blocks = text.view(count, block)

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        return {"input_ids": self.blocks[index], "labels": self.blocks[index].clone()}


def main():
    parser = HfArgumentParser(TrainingArguments)
    (asked,) = parser.parse_args_into_dataclasses()
    set_seed(asked.seed)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    model = LlamaForCausalLM(config)
    trainer = Trainer(model=model, args=asked, train_dataset=Blocks(64, 16), data_collator=default_data_collator)
    trainer.train()


if __name__ == "__main__":
    main()
