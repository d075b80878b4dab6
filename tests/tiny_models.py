# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with two layers and random weights, and a tokenizer of bytes, for tests."""

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ["<pad>", "<eos>", "<mask>"]
VOCABULARY = {token: number for number, token in enumerate([*BYTES, *SPECIAL])}
TOKENS_MAX = 64


def tokenizer():
    """One token for each byte, and three special ones."""
    bare = Tokenizer(models.BPE(vocab=VOCABULARY, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens(SPECIAL)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bare, pad_token="<pad>", eos_token="<eos>", mask_token="<mask>"
    )


def _sizes(**more):
    return {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": TOKENS_MAX,
        "pad_token_id": VOCABULARY["<pad>"],
        # Larger weights than usual, so that the most likely token is so by far.
        "initializer_range": 1.0,
        **more,
    }


def _made(model_class, config, folder):
    torch.set_num_threads(1)  # more wait for each other on busy cores
    torch.manual_seed(7)
    model = model_class(config).eval()
    if folder is not None:
        model.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
    return model


def language_model(folder=None, **more):
    """A small Llama; `more` is configured, saved in a folder. It never ends a text by itself."""
    ends = {"bos_token_id": None, "eos_token_id": VOCABULARY["<eos>"], "num_key_value_heads": 2}
    return _made(transformers.LlamaForCausalLM, transformers.LlamaConfig(**_sizes(**ends, **more)), folder)


def windowed_model(**more):
    """A small Mistral, in which a token sees the four before it."""
    ends = {"bos_token_id": None, "eos_token_id": VOCABULARY["<eos>"], "num_key_value_heads": 2, "sliding_window": 4}
    return _made(transformers.MistralForCausalLM, transformers.MistralConfig(**_sizes(**ends, **more)), None)


def bert(kind, folder, **more):
    """A small BERT for a task: `kind` is the end of a class's name."""
    return _made(getattr(transformers, f"Bert{kind}"), transformers.BertConfig(**_sizes(**more)), folder)
