"""As TRL's first page of SFT: `SFTTrainer` with a dataset of texts; a tiny model and a tokenizer made here."""

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import HfArgumentParser, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import SFTConfig, SFTTrainer

WORDS = ["the", "a", "cat", "dog", "sees", "hears", "finds", "old", "new", "red", "blue", "house", "tree", "river"]


def made():
    names = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(names, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def main():
    (asked,) = HfArgumentParser(SFTConfig).parse_args_into_dataclasses()
    set_seed(asked.seed)
    texts = [
        " ".join(WORDS[(number * 3 + place * 5) % len(WORDS)] for place in range(4 + number % 5))
        for number in range(64)
    ]
    config = Qwen2Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    trainer = SFTTrainer(
        model=Qwen2ForCausalLM(config),
        args=asked,
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=made(),
    )
    trainer.train()


if __name__ == "__main__":
    main()
