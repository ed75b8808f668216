"""Settings of verl's `sft_trainer`, and of the older `fsdp_sft_trainer`, to the fields of an RLJob.

The first counts GPUs as torchrun does, and its batches in rows.
"""

import re
from collections.abc import Sequence

from rljob_api.algorithms import SFT
from rljob_importing import lengths, verl_keys
from rljob_importing.command import Launch
from rljob_importing.draft import Arguments, Draft, NoteKind, by_family, carry_over, origin
from rljob_importing.mapping import (
    DIRECTORY,
    EPOCHS,
    LOGGING,
    PACKED,
    REAL,
    TEXT,
    WHOLE,
    Entry,
    Field,
    Joint,
    Lost,
    Needless,
    chosen,
    of_facts,
    same,
    transformer_field,
)
from rljob_importing.verl_given import DEFAULT, listed, put_betas, put_source, shown
from rljob_importing.verl_keys import NOTHING, POSITIONS
from rljob_importing.words import Given, Word

LENGTH = 1024
"""verl's default of data.max_length"""
KEYS: dict[str, Entry] = {
    **{name: entry for name, entry in verl_keys.KEYS.items() if name.startswith("trainer.")},
    **{
        name.removeprefix(f"{verl_keys.ACTOR}."): entry
        for name, entry in verl_keys.KEYS.items()
        if name.startswith(f"{verl_keys.ACTOR}.optim.") and isinstance(entry, Field)
    },
    **of_facts("megatron", lambda name: f"engine.{transformer_field(name)}" if "parallel" in name else ""),
    **same(
        verl_keys.LAYOUT,
        (
            *("engine.sequence_parallel", "engine.virtual_pipeline_model_parallel_size"),
            "engine.pipeline_model_parallel_layout",
        ),
    ),
    **same(Field("model.checkpoint", DIRECTORY), ("model.path", "model.partial_pretrain")),
    "data.train_files": Joint("data.train"),
    "data.val_files": Joint("data.heldOut"),
    "data.train_batch_size": Field("rollout.promptsPerStep", WHOLE),
    "data.train_max_samples": Joint("data.train.limit"),
    "data.val_max_samples": Joint("data.heldOut.limit"),
    "data.max_length": Joint("rollout.contextLength, rollout.sampling.maxNewTokens"),
    **same(Joint("data.inputKey"), ("data.messages_key", "data.multiturn.messages_key", "data.prompt_key")),
    "data.response_key": Field("data.labelKey", TEXT),
    "data.max_token_len_per_gpu": Field("training.maxTokensPerGpu", WHOLE),
    "data.truncation": Needless("a row that is too long is refused before the start"),
    "model.enable_gradient_checkpointing": Field("training.recompute", chosen({"true": "Full", "false": "None"})),
    "optim.grad_clip": Field("training.optimizer.clipGrad", REAL),
    "optim.lr_warmup_steps": Field("training.optimizer.warmupSteps", WHOLE),
    "optim.betas": Joint("training.optimizer.beta1, training.optimizer.beta2"),
    **same(
        Lost("the number of optimizer steps is not known; set spec.training.optimizer.warmupSteps", NOTHING),
        ("optim.lr_warmup_steps_ratio", "optim.warmup_steps_ratio"),
    ),
    "optim.lr_scheduler": verl_keys.KEYS[f"{verl_keys.ACTOR}.optim.lr_scheduler_type"],
    "trainer.seed": Field("seed", WHOLE),
}
FAMILIES: tuple[tuple[re.Pattern[str], Entry], ...] = (
    (re.compile(r".*micro_batch_size(_per_gpu)?|.*use_dynamic_bsz|.*use_remove_padding|data\.pad_mode"), PACKED),
    (re.compile(r".*override_config\.(max_position_embeddings|.*rope.*)"), POSITIONS),
    (re.compile(r"data\..*"), Lost("spec.data has no such setting", NOTHING)),
    (re.compile(r"optim(\..*)?"), Lost("spec.training.optimizer has no such setting", NOTHING)),
    (re.compile(r"model\.(trust_remote_code|use_liger|use_shm|strategy|fsdp_config\..*)"), verl_keys.LAYOUT),
    (
        re.compile(r"model\..*lora.*|model\.target_modules"),
        Lost("rljob has no LoRA, and trains all parameters", NOTHING),
    ),
    (re.compile(r"model(\..*)?"), Lost(f"{verl_keys.DESCRIBED}, its tokenizer and its template", NOTHING)),
    (re.compile(r"engine(\..*)?|ulysses_sequence_parallel_size|use_remove_padding"), verl_keys.LAYOUT),
    (re.compile(r"trainer\..*(log|profile|ckpt|experiment).*"), LOGGING),
    (re.compile(r"(checkpoint|profiler|hydra)\..*"), LOGGING),
)
TORCHRUN = {"nnodes": "nodes", "nproc_per_node": "gpusPerNode"}
DEFAULTS: dict[str, object] = {
    "rollout.promptsPerStep": 256,
    "training.gpusPerNode": 1,
    "training.optimizer.learningRate": 1e-3,
    "training.optimizer.weightDecay": 0.01,
    "training.optimizer.beta2": 0.999,
}


def draft(given: Sequence[Given], launch: Launch) -> Draft:
    """Return the RLJob's spec as far as the settings of `sft_trainer` give it."""
    made, arguments = Draft(), Arguments(given)
    carry_over(made, arguments, KEYS, by_family(FAMILIES))
    made.put("algorithm.name", SFT, f"{launch.program.text}, line {launch.program.line}")
    _data(made, arguments)
    _processes(made, arguments, launch.before)
    put_betas(made, arguments, "optim.betas")
    _trainer(made, arguments)
    made.fill(DEFAULTS, DEFAULT)
    return made


def _data(made: Draft, arguments: Arguments) -> None:
    for name, path in (("data.train_files", "data.train"), ("data.val_files", "data.heldOut")):
        files = listed(arguments, name)
        if not files or files[0].lower() in NOTHING:
            continue
        put_source(made, arguments, name, path, files[0])
        if len(files) > 1:
            made.note(NoteKind.LOST, arguments[name], f"spec.{path} is one file; join them")
    key = next((name for name in KEYS if KEYS[name] == Joint("data.inputKey") and name in arguments), None)
    made.put("data.inputKey", arguments[key].text if key else "messages", shown(arguments, key or ""))
    lengths.share(made, arguments.whole("data.max_length") or LENGTH, None, arguments.get("data.max_length"), DEFAULT)


def _processes(made: Draft, arguments: Arguments, before: Sequence[Word]) -> None:
    """Carry over torchrun's options where no key says it: `--nnodes=2 --nproc_per_node 8`."""
    for index, word in enumerate(before):
        flag, equals, value = word.text.removeprefix("--").replace("-", "_").partition("=")
        text = value if equals else before[index + 1].text if index + 1 < len(before) else ""
        path = f"training.{TORCHRUN[flag]}" if flag in TORCHRUN else ""
        if path and path not in made.origins:
            shown_word = f"{word.text}{'' if equals else f' {text}'}, line {word.line}"
            if text.isdecimal():
                made.put(path, int(text), shown_word)
            else:
                made.note(NoteKind.UNKNOWN, None, f"{shown_word}: cannot be evaluated; set spec.{path}")


def _trainer(made: Draft, arguments: Arguments) -> None:
    for name, path in (("trainer.save_freq", "checkpoint.interval"), ("trainer.test_freq", "evaluation.interval")):
        if (arguments.whole(name) or 0) > 0:
            made.put(path, arguments.whole(name), origin(arguments[name]))
    if "trainer.total_epochs" in arguments and "training.steps" not in made.origins:
        made.note(NoteKind.UNKNOWN, arguments["trainer.total_epochs"], EPOCHS)
    if "wandb" in (arguments.text("trainer.logger") or "") and "trainer.project_name" in arguments:
        name = "trainer.project_name"
        made.put("tracking.wandb.project", arguments[name].text, origin(arguments[name]))
