"""The layers of the policy, as Megatron runs them; on GPUs with our kernels between its modules."""
