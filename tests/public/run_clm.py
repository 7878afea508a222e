"""A training script in the manner of Transformers' own run_clm.py: arguments of three dataclasses, Trainer, metrics in files.

As it stands it knows nothing of trackside. docs/transformers.md shows the lines that it takes.
"""

import logging
import math
import os
import sys
from dataclasses import dataclass, field
from typing import Optional

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    model_type: str = field(default="gpt2", metadata={"help": "Train a model of this type from scratch."})
    n_embd: int = field(default=32)
    n_layer: int = field(default=1)
    n_head: int = field(default=2)


@dataclass
class DataTrainingArguments:
    train_file: str = field(default="", metadata={"help": "The input training data file (a text file)."})
    validation_split_percentage: int = field(default=5)
    block_size: int = field(default=32)
    max_eval_samples: Optional[int] = field(default=32)


def main():
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()

    logging.basicConfig(format="%(levelname)s - %(name)s - %(message)s", handlers=[logging.StreamHandler(sys.stdout)])
    log_level = training_args.get_process_log_level()
    logger.setLevel(log_level)
    transformers.utils.logging.set_verbosity(log_level)
    set_seed(training_args.seed)

    # Load the text, as bytes
    with open(data_args.train_file, "rb") as file:
        codes = torch.tensor(list(file.read()))
    count = len(codes) // data_args.block_size
    blocks = codes[: count * data_args.block_size].reshape(count, -1)
    lm_datasets = [{"input_ids": block, "labels": block} for block in blocks]
    split = count * data_args.validation_split_percentage // 100
    train_dataset, eval_dataset = lm_datasets[split:], lm_datasets[:split][: data_args.max_eval_samples]

    config = AutoConfig.for_model(
        model_args.model_type,
        vocab_size=256,
        n_positions=data_args.block_size,
        n_embd=model_args.n_embd,
        n_layer=model_args.n_layer,
        n_head=model_args.n_head,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config)
    n_params = sum({p.data_ptr(): p.numel() for p in model.parameters()}.values())
    logger.info(f"Training new model from scratch - Total size={n_params / 2**20:.2f}M params")

    # Initialize our Trainer
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset if training_args.do_train else None,
        eval_dataset=eval_dataset if training_args.do_eval else None,
        data_collator=default_data_collator,
    )

    # Training
    if training_args.do_train:
        checkpoint = None
        if training_args.resume_from_checkpoint is not None:
            checkpoint = training_args.resume_from_checkpoint
        elif os.path.isdir(training_args.output_dir):
            checkpoint = get_last_checkpoint(training_args.output_dir)
        train_result = trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()  # Saves the tokenizer too for easy upload

        metrics = train_result.metrics
        metrics["train_samples"] = len(train_dataset)
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()

    # Evaluation
    if training_args.do_eval:
        logger.info("*** Evaluate ***")
        metrics = trainer.evaluate()
        metrics["eval_samples"] = len(eval_dataset)
        try:
            perplexity = math.exp(metrics["eval_loss"])
        except OverflowError:
            perplexity = float("inf")
        metrics["perplexity"] = perplexity
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)


if __name__ == "__main__":
    main()
