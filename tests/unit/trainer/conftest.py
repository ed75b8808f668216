import torch

torch.set_num_threads(1)  # small tensors gain nothing from more, and other tests run beside these
