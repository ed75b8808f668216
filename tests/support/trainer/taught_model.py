"""A tiny Llama that has learned conversations by heart: a real engine then says what a test needs it to say."""

from collections.abc import Sequence
from pathlib import Path

from support.trainer.tiny_models import tiny_llama

Turn = dict[str, str]

LEARNING_RATE = 3e-3
LONGEST = 600
"""steps; 150 are usual"""
GOOD = 2e-3
"""mean negative log-probability of a token, where learning ends: 40 of them then come out right in 92 % of samples"""


def taught_llama(directory: Path, conversations: Sequence[Sequence[Turn]]) -> Path:
    """Write a checkpoint that says the turns of the role `assistant` of these conversations, and return `directory`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tiny_llama(directory, seed=1)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    torch.set_num_threads(1)  # of a model this small, two on busy cores wait for each other ten times as long
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, std=0.05)
    rows = [_row(tokenizer, conversation) for conversation in conversations]
    length = max(len(tokens) for tokens, _ in rows)
    tokens_BT = torch.zeros(len(rows), length, dtype=torch.long)
    labels_BT = torch.full((len(rows), length), -100)
    for index, (tokens, labels) in enumerate(rows):
        tokens_BT[index, : len(tokens)] = torch.tensor(tokens)
        labels_BT[index, : len(labels)] = torch.tensor(labels)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for _ in range(LONGEST):
        loss = model(input_ids=tokens_BT, labels=labels_BT).loss
        if loss.item() < GOOD:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    else:
        raise AssertionError(f"after {LONGEST} steps the loss is {loss.item():.4f}, not {GOOD}")
    model.save_pretrained(directory)
    (directory / "model.safetensors").chmod(0o644)  # pods read it as another user
    return directory


def _row(tokenizer, conversation: Sequence[Turn]) -> tuple[list[int], list[int]]:  # type: ignore[no-untyped-def]
    """Return the tokens of a conversation, and the labels: -100 for what the model does not say."""
    tokens: list[int] = []
    labels: list[int] = []
    for turn in conversation:
        head = tokenizer.encode(f"<|im_start|>{turn['role']}\n", add_special_tokens=False)
        said = tokenizer.encode(f"{turn['content']}<|im_end|>", add_special_tokens=False)
        end = tokenizer.encode("\n", add_special_tokens=False)
        own = turn["role"] == "assistant"
        tokens += [*head, *said, *end]
        labels += [-100] * len(head) + (said if own else [-100] * len(said)) + [-100] * len(end)
    return tokens, labels
