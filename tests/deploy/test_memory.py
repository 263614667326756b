"""Memory in huge pages: any length, aligned, and never handed out twice."""

import pytest

from dgconv.deploy.memory import ALIGNMENT, BLOCK_FLOATS, Memory, empty


@pytest.mark.parametrize("floats", [0, 1, 17, 1 << 19, (1 << 20) + 3])
def test_empty_is_a_vector_that_can_be_filled(floats):
    memory = empty(floats).fill_(2)
    assert memory.shape == (floats,)
    assert memory.sum() == 2 * floats


def test_a_memory_hands_out_disjoint_aligned_vectors():
    memory = Memory()
    lengths = [5, 1000, 16, BLOCK_FLOATS - 100, 7, BLOCK_FLOATS + 1, 3]  # over several blocks
    vectors = [memory.empty(length) for length in lengths]
    for value, vector in enumerate(vectors):
        vector.fill_(value)
    for value, (vector, length) in enumerate(zip(vectors, lengths, strict=True)):
        assert len(vector) == length
        assert vector.data_ptr() % (4 * ALIGNMENT) == 0
        assert vector.min() == vector.max() == value
