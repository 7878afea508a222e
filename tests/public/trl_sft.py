# In the manner of TRL's sft.py; the model is tiny and new, and the text is Python's help, so that nothing is downloaded.
from dataclasses import dataclass
from pydoc_data.topics import topics

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer, TrlParser


@dataclass
class ScriptArguments:
    rows: int = 128


def make_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    special = ["<unk>", "<pad>", "<eos>"]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, special_tokens=special))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>", model_max_length=64
    )


def main(script_args, training_args):
    set_seed(training_args.seed)
    texts = [line.strip() for page in topics.values() for line in page.splitlines() if len(line) > 40]
    tokenizer = make_tokenizer(texts[:2000])
    dataset = Dataset.from_dict({"text": texts[: script_args.rows]}).train_test_split(0.1, seed=0)
    size = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
    ends = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **size, **ends))
    trainer = SFTTrainer(
        model=model,
        args=training_args,
        train_dataset=dataset["train"],
        eval_dataset=dataset["test"] if training_args.eval_strategy != "no" else None,
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(training_args.output_dir)
    trainer.save_state()


if __name__ == "__main__":
    main(*TrlParser((ScriptArguments, SFTConfig)).parse_args_and_config())
