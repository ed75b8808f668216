"""The process of a rank before there is a model: threads, seeds and device, then the other ranks."""

import logging
import os
import random
import socket
import warnings
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import initialize_rng_tracker

from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.link_report import LinkReport
from rljob_trainer.learners.rank.rendezvous.links import Wire, arrive, measure
from rljob_trainer.learners.rank.rendezvous.store import meet
from rljob_trainer.learners.rank.replacements import wgrad


def prepare(config: LearnerConfig, rank: int) -> torch.device:
    """Set threads, seeds and device of this process; let Megatron find what it would take from Apex."""
    torch.set_num_threads(config.num_threads)
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)
    torch.manual_seed(config.seed)
    wgrad.install()
    _silence_known_warnings()
    if config.layout.sequence:
        # Before CUDA starts. Collectives of shares then begin before the products that are launched after them.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    if config.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def join(
    config: LearnerConfig, rank: int, world_size: int, master_address: str, master_port: int, device: torch.device
) -> LinkReport | None:
    """Meet the other ranks, measure the network, and make Megatron's groups.

    Every collective fails after the configured time. Raises LinkError for ranks that do not come or do not answer.
    """
    timeout = timedelta(seconds=config.timeout_s)
    store = meet(master_address, master_port, rank, world_size, timeout)
    places = arrive(dist.PrefixStore("places", store), rank, world_size, socket.gethostname(), timeout)
    dist.init_process_group(
        "gloo" if config.device == "cpu" else "cpu:gloo,cuda:nccl",
        store=dist.PrefixStore("ranks", store),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
    )
    links = measure(Wire(device), dist.PrefixStore("links", store), rank, places) if world_size > 1 else None
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=config.layout.tensor,
        pipeline_model_parallel_size=config.layout.pipeline,
        virtual_pipeline_model_parallel_size=config.layout.virtual if config.layout.virtual > 1 else None,
        context_parallel_size=config.layout.context,
        expert_model_parallel_size=config.layout.expert,
        expert_tensor_parallel_size=config.layout.expert_tensor,
        distributed_timeout_minutes=config.timeout_s / 60,
    )
    # Megatron computes shares of tokens with separate random states; without dropout nothing is random.
    initialize_rng_tracker(inference_rng_tracker=True)
    return links


def _silence_known_warnings() -> None:
    """Keep out of the log what Megatron 0.16.1 does on purpose and torch 2.11 warns of in every rank."""
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
    warnings.filterwarnings("ignore", "full scope is deprecated", UserWarning)
    warnings.filterwarnings("ignore", ".*ShardedTensor", FutureWarning)
    warnings.filterwarnings("ignore", "`load_state_dict` is deprecated", FutureWarning)
    warnings.filterwarnings("ignore", "When using expert parallelism and tensor parallelism", UserWarning)
    warnings.filterwarnings("ignore", "`sequence_parallel` is set to `True`, but", UserWarning)  # whole experts
    logging.getLogger("megatron.core.transformer.transformer_layer").setLevel(logging.ERROR)  # our layer of experts
