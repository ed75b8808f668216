"""Replacements for parts of torch and Megatron that need CUDA, a compiler or Apex."""
