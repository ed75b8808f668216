"""Which packed tokens a rank computes, and how they attend: positions, kernels, shares of context-parallel ranks."""
