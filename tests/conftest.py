"""One thread for each test process: two pools that spin against each other are slower than none."""

import torch

torch.set_num_threads(1)
