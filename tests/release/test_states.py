from pathlib import Path

import torch

from clefquant.release.states import States

CPU = torch.device("cpu")


def test_states_spill_to_disk_and_come_back_bit_equal(tmp_path: Path):
    tensors = {number: torch.randn(4, 8, dtype=torch.bfloat16) for number in range(4)}
    with States(2 * 4 * 8 * 2, tmp_path) as states:
        for key, tensor in tensors.items():
            states.put(key, tensor)
        assert states.spilled == 2
        assert all(torch.equal(states.get(key, CPU), tensor) for key, tensor in tensors.items())
        states.put(3, tensors[0])
        assert torch.equal(states.get(3, CPU), tensors[0])
        states.drop(0)
        states.put(2, tensors[2])
        assert states.spilled == 1
        assert any(tmp_path.iterdir())
    assert not any(tmp_path.iterdir())
