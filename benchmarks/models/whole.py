"""Architectures that people bring: ``WHOLE`` maps each name to a :class:`ModelSpec`.

They are traced, as many of them cannot be scripted. Some are of other packages, which are imported
when such a model is made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.inputs import images
from benchmarks.models import MODELS, ModelSpec
from benchmarks.models.dlrm import DLRM, clicks
from benchmarks.models.hugging_face import LAYERS, transformer
from benchmarks.models.recurrent import WordTagger
from benchmarks.models.torchvision_nets import Inception, Pyramid, SSDlite

_WORDS = 1000
_RATE = 16_000  # samples of a second


def words(batch: int, seed: int, tokens: int = 128) -> Tensor:
    """``batch`` sequences of words ``[batch, tokens]``, of which a few are frequent."""
    generator = torch.Generator().manual_seed(seed)
    return (3 + (_WORDS - 3) * torch.rand(batch, tokens, generator=generator) ** 3).long()


def sounds(batch: int, seed: int) -> Tensor:
    """``batch`` sounds of a second: tones that swell and fade, and noise."""
    generator = torch.Generator().manual_seed(seed)
    times = torch.arange(_RATE) / _RATE
    pitch = 80 * 2 ** (5 * torch.rand(batch, 6, 1, generator=generator))
    swell = torch.sin(torch.pi * (times + torch.rand(batch, 6, 1, generator=generator)))
    tones = (swell * torch.sin(2 * torch.pi * pitch * times)).sum(1)
    return tones + 0.1 * torch.randn(batch, _RATE, generator=generator)


def spectrograms(batch: int, seed: int, bands: int = 80, frames: int = 3000) -> Tensor:
    """``batch`` smooth spectrograms ``[batch, bands, frames]``."""
    return nn.functional.interpolate(images(batch, seed), (bands, frames), mode="bilinear")[:, 0]


def _hugging_face(
    title: str, name: str, inputs: Callable[[int, int], Tensor] = words, **options: Any
) -> ModelSpec:
    if inputs is not images:
        options.setdefault("vocab_size", _WORDS)
    return ModelSpec(title, partial(transformer, name, **options), inputs, traced=True)


_DEPTH = {"num_hidden_layers": LAYERS}

WHOLE: dict[str, ModelSpec] = {
    "bert": _hugging_face("BERT, 128 tokens", "BertModel", **_DEPTH),
    "distilbert": _hugging_face("DistilBERT, 128 tokens", "DistilBertModel", n_layers=LAYERS),
    "roberta": _hugging_face("RoBERTa, 128 tokens", "RobertaModel", **_DEPTH),
    "t5": _hugging_face("T5, encoder, 128 tokens", "T5EncoderModel", num_layers=LAYERS),
    "gpt2": _hugging_face(
        "GPT-2 with its head, 128 tokens", "GPT2LMHeadModel", n_layer=LAYERS, result="logits",
        use_cache=False,
    ),
    "gpt2_cache": _hugging_face(
        "GPT-2 with its head and a cache, 96 tokens and 32", "GPT2LMHeadModel", n_layer=LAYERS,
        last=32,
    ),
    "clip_text": _hugging_face(
        "CLIP, texts, 77 tokens", "CLIPTextModel", partial(words, tokens=77), **_DEPTH
    ),
    "clip_image": _hugging_face("CLIP, images", "CLIPVisionModel", images, **_DEPTH),
    "vit": _hugging_face("ViT", "ViTModel", images, **_DEPTH),
    "swin": _hugging_face("Swin", "SwinModel", images, depths=(2, 2, 2, 2)),
    "wav2vec2": _hugging_face("wav2vec2, 1 s", "Wav2Vec2Model", sounds, **_DEPTH),
    "whisper": _hugging_face(
        "Whisper, encoder, 30 s", "WhisperModel", spectrograms, part="encoder", d_model=512,
        encoder_layers=LAYERS, encoder_attention_heads=8, encoder_ffn_dim=2048, decoder_layers=1,
        decoder_attention_heads=8,
        vocab_size=51865,
    ),
    "word_tagger": ModelSpec(
        "LSTM tagger of words, 50 tokens", WordTagger, partial(words, tokens=50), traced=True
    ),
    "dlrm": ModelSpec("DLRM", DLRM, clicks, traced=True),
    "ssdlite": ModelSpec("SSDlite, 320", SSDlite, partial(images, size=320), traced=True),
    "mask_rcnn": ModelSpec("Mask R-CNN's backbone", Pyramid, images, traced=True),
    "inception": ModelSpec(
        "Inception v3, both heads", Inception, partial(images, size=299), traced=True
    ),
}  # fmt: skip

EVERY = MODELS | WHOLE
