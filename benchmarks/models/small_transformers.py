"""Transformers of Hugging Face in small configurations, with random weights.

``SMALL`` has those of docs/models.md that are not in ``WHOLE``, where they have their usual widths.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from benchmarks.inputs import images
from benchmarks.models import ModelSpec
from benchmarks.models.hugging_face import transformer
from benchmarks.models.whole import words

_WIDTH, _WORDS = 64, 1000
_STD = {"initializer_range": _WIDTH**-0.5}  # by default attention is nearly the same everywhere
_TEXT = {
    "vocab_size": _WORDS, "hidden_size": _WIDTH, "intermediate_size": 2 * _WIDTH,
    "num_hidden_layers": 2, "num_attention_heads": 4, **_STD,
}  # fmt: skip
_BOTH = {
    "vocab_size": _WORDS, "d_model": _WIDTH, "init_std": _WIDTH**-0.5,
    "encoder_layers": 2, "encoder_ffn_dim": 2 * _WIDTH, "encoder_attention_heads": 4,
    "decoder_layers": 2, "decoder_ffn_dim": 2 * _WIDTH, "decoder_attention_heads": 4,
}  # fmt: skip


def _small(
    title: str, name: str, inputs: Callable[[int, int], Tensor] | None = None, **options: Any
) -> ModelSpec:
    given = inputs or partial(words, tokens=32)
    return ModelSpec(title, partial(transformer, name, **options), given, traced=True)


SMALL: dict[str, ModelSpec] = {
    "albert": _small("ALBERT", "AlbertModel", embedding_size=32, **_TEXT),
    "bart": _small("BART", "BartModel", copied=True, **_BOTH),
    "convnext": _small(
        "ConvNeXt", "ConvNextModel", partial(images, size=64), hidden_sizes=(16, 32, 64, 128),
        depths=(1, 1, 2, 1), layer_scale_init_value=0.5, **_STD,
    ),
    "deberta": _small(
        "DeBERTa", "DebertaModel", relative_attention=True, pos_att_type=["c2p", "p2c"], **_TEXT
    ),
    "electra": _small("ELECTRA", "ElectraModel", embedding_size=32, **_TEXT),
    "gemma": _small(
        "Gemma", "GemmaModel", num_key_value_heads=2, head_dim=16, use_cache=False, **_TEXT
    ),
    "gpt_neox": _small("GPT-NeoX", "GPTNeoXModel", use_cache=False, **_TEXT),
    "llama": _small("Llama", "LlamaModel", num_key_value_heads=2, use_cache=False, **_TEXT),
    "marian": _small(
        "Marian", "MarianModel", copied=True, pad_token_id=1, decoder_start_token_id=1, **_BOTH
    ),
    "mpnet": _small("MPNet", "MPNetModel", **_TEXT),
    "segformer": _small(
        "SegFormer", "SegformerModel", partial(images, size=64), hidden_sizes=(16, 32, 64, 128),
        num_attention_heads=(1, 2, 4, 8), **_STD,
    ),
    "t5": _small(
        "T5", "T5Model", copied=True, vocab_size=_WORDS, d_model=_WIDTH, d_kv=16, d_ff=2 * _WIDTH,
        num_layers=2, num_heads=4,
    ),
    "xlnet": _small(
        "XLNet", "XLNetModel", vocab_size=_WORDS, d_model=_WIDTH, d_inner=2 * _WIDTH, n_layer=2,
        n_head=4, **_STD,
    ),
}  # fmt: skip
