"""What the processes of a run send each other, without any process."""

import pytest
import torch

from cmlmcse.common import distributed
from cmlmcse.common.distributed import buckets


@pytest.mark.parametrize(("most", "sizes"), [(200, [[10, 20], [30], [40, 5]]), (8, [[10], [20], [30], [40], [5]])])
def test_buckets(most, sizes, monkeypatch):
    """As many bytes as fit, of one type, in the tensors' order; a tensor that is too large stands alone."""
    monkeypatch.setattr(distributed, "BUCKET", most)
    tensors = [*map(torch.zeros, (10, 20, 30)), torch.zeros(40).half(), torch.zeros(5).half()]
    found = list(buckets(tensors))
    assert [[len(each) for each in bucket] for bucket in found] == sizes
    assert [id(each) for bucket in found for each in bucket] == [*map(id, tensors)]
    assert list(buckets([])) == []
