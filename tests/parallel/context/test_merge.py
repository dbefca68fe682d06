import torch

from hydraulis.model.attention.kernel import Attended, Heads
from hydraulis.parallel.context.merge import merge_, widened
from model.attention.reference import mask_of, masked_softmax, random_heads


def test_blocks_of_keys_merge_to_attention_over_all_of_them() -> None:
    whole = mask_of([5], [9], causal=False)
    heads = random_heads(whole, 4, 2)
    parts = [slice(0, 4), slice(4, 5), slice(5, 9)]
    masks = [mask_of([5], [part.stop - part.start], causal=False) for part in parts]
    first, *others = (
        Attended(*masked_softmax(Heads(heads.q_TND, heads.k_SKD[part], heads.v_SKD[part]), mask))
        for part, mask in zip(parts, masks, strict=True)
    )
    total = widened(first)
    for other in others:
        merge_(total, other, None)
    torch.testing.assert_close(tuple(total), tuple(masked_softmax(heads, whole)), rtol=1e-12, atol=1e-12)


def test_a_block_without_keys_changes_nothing() -> None:
    mask = mask_of([3], [2], causal=False)
    total = widened(Attended(*masked_softmax(random_heads(mask, 2, 2), mask)))
    before = [x.clone() for x in total]
    nothing = Attended(torch.zeros_like(total.o_TND), torch.full_like(total.log_sum_exp_TN, -torch.inf))
    merge_(total, nothing, None)
    assert all(torch.equal(one, other) for one, other in zip(total, before, strict=True))


def test_only_the_rows_named_are_merged_in_float32() -> None:
    total = widened(Attended(torch.ones(3, 1, 2, dtype=torch.bfloat16), torch.zeros(3, 1)))
    part = Attended(torch.full((1, 1, 2), 4.0, dtype=torch.bfloat16), torch.full((1, 1), 0.5).log())
    merge_(total, part, torch.tensor([1]))
    assert total.o_TND.dtype == torch.float32
    torch.testing.assert_close(total.o_TND[:, 0, 0], torch.tensor([1.0, 2.0, 1.0]))
    torch.testing.assert_close(total.log_sum_exp_TN[:, 0], torch.tensor([1.0, 1.5, 1.0]).log())
