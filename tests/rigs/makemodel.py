"""A tiny random Llama with a real BPE tokenizer and chat template: makemodel.py FOLDER [--vocab 8000] [--context 4096].

The tokenizer is trained on the running Python's standard library, so token ids depend on the Python version; golden/
files carry the ids they used. Weights are random (seed 0) bf16: hidden 128, 2 layers, 2 heads of 64. Needs tokenizers,
and torch and safetensors unless --no-weights.
"""

import argparse
import glob
import json
import os
import pathlib

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HIDDEN, INNER, LAYERS, HEADS, HEAD = 128, 256, 2, 2, 64


def tokenizer(folder: pathlib.Path, vocab: int, context: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train(sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:200], trainer)
    if bpe.get_vocab_size() < vocab:
        raise SystemExit(f"only {bpe.get_vocab_size()} tokens from the standard library's sources")
    bpe.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "model_max_length": context,
                "chat_template": CHAT_TEMPLATE,
            }
        )
    )


def config(folder: pathlib.Path, vocab: int, context: int) -> None:
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "dtype": "bfloat16",
                "vocab_size": vocab,
                "hidden_size": HIDDEN,
                "intermediate_size": INNER,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": HEADS,
                "num_key_value_heads": HEADS,
                "head_dim": HEAD,
                "max_position_embeddings": context,
                "rms_norm_eps": 1e-6,
                "rope_theta": 10000.0,
                "hidden_act": "silu",
                "tie_word_embeddings": False,
                "bos_token_id": 0,
                "eos_token_id": 2,
            },
            indent=1,
        )
    )
    (folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 0, "eos_token_id": 2, "temperature": 0.9})
    )


def weights(folder: pathlib.Path, vocab: int) -> None:
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)

    def random(*shape):
        return (torch.randn(*shape) * 0.05).to(torch.bfloat16)

    tensors = {
        "model.embed_tokens.weight": random(vocab, HIDDEN),
        "lm_head.weight": random(vocab, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
    }
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for name in "qkv":
            tensors[f"{at}self_attn.{name}_proj.weight"] = random(HEADS * HEAD, HIDDEN)
        tensors[at + "self_attn.o_proj.weight"] = random(HIDDEN, HEADS * HEAD)
        tensors[at + "mlp.gate_proj.weight"], tensors[at + "mlp.up_proj.weight"] = (
            random(INNER, HIDDEN),
            random(INNER, HIDDEN),
        )
        tensors[at + "mlp.down_proj.weight"] = random(HIDDEN, INNER)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{name}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument(
        "--no-weights", action="store_true", help="tokenizer and config only: enough for the native rigs"
    )
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    tokenizer(args.folder, args.vocab, args.context)
    config(args.folder, args.vocab, args.context)
    if not args.no_weights:
        weights(args.folder, args.vocab)
