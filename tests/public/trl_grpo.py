# In the manner of TRL's grpo.py; a tiny new model learns to answer with few letters, and nothing is downloaded.
import os
from dataclasses import dataclass

from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import GRPOConfig, GRPOTrainer, TrlParser


@dataclass
class ScriptArguments:
    rows: int = 64


def make_tokenizer():
    words = ["<unk>", "<pad>", "<eos>", *"abcdefghijklmnopqrstuvwxyz "]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def reward_vowels(completions, **kwargs):
    return [sum(completion.count(vowel) for vowel in "aeiou") / 8 for completion in completions]


def main(script_args, training_args):
    set_seed(training_args.seed)
    tokenizer = make_tokenizer()
    dataset = Dataset.from_dict({"prompt": [f"say {chr(97 + row % 26)}" for row in range(script_args.rows)]})
    size = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
    ends = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
    begin = os.path.join(training_args.output_dir, "begin")
    GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **size, **ends)).save_pretrained(begin)
    trainer = GRPOTrainer(
        model=begin,
        args=training_args,
        reward_funcs=reward_vowels,
        train_dataset=dataset,
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_state()


if __name__ == "__main__":
    main(*TrlParser((ScriptArguments, GRPOConfig)).parse_args_and_config())
