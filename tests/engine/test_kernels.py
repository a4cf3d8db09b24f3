"""Names that profilers showed, and what they say about attention."""

from __future__ import annotations

import pytest

from paceline.engine.kernels import Seen, attention_backend_of, find_attention, is_own

FLASH = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t>>(pytorch_flash::Flash_fwd_params)"
MATH = "aten::_scaled_dot_product_attention_math"


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        (FLASH, "flash"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_kernel_traits<64>>", "flash"),
        ("void pytorch_flash::flash_bwd_dot_do_o_kernel<true, pytorch_flash::Flash_bwd_kernel_traits<64>>", "flash"),
        ("void pytorch_flash::flash_fwd_splitkv_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>", "flash"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(Flash_fwd_params)", "flash"),
        ("aten::_scaled_dot_product_flash_attention", "flash"),
        ("aten::_flash_attention_backward", "flash"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "flash"),
        ("ScaledDotProductFlashAttentionForCpuBackward0", "flash"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0", "cudnn"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x1x1_kernel0_0", "cudnn"),
        ("cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_3_64x64x128_4x1x1_kernel0_0", "cudnn"),
        ("aten::_scaled_dot_product_cudnn_attention", "cudnn"),
        ("aten::_cudnn_attention_forward", "cudnn"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>)", "efficient"),
        ("fmha_cutlassB_bf16_aligned_128x128_k128_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<>)", "efficient"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "efficient"),
        ("aten::_efficient_attention_forward", "efficient"),
        ("aten::_scaled_dot_product_efficient_attention_backward", "efficient"),
        (MATH, "math"),
        ("triton_tem_fused_flex_attention_0", "flex"),
        ("triton_tem_fused_flex_attention_backward_zeros_2", "flex"),
        ("triton_flex_attention_3", "flex"),
        ("aten::_softmax", "eager"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(float*, float const*, int)", "eager"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, at::native::(anonymous namespace)::SoftMaxForwardEpilogue>", "eager"),
        # a loss over a catalogue
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*, float const*, int)", None),
        ("void at::native::cunn_SoftMaxForward<4, float, float, float, at::native::LogSoftMaxForwardEpilogue>", None),
        ("aten::_log_softmax", None),
        ("aten::scaled_dot_product_attention", None),
        ("aten::bmm", None),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas", None),
        ("nvjet_tst_64x8_64x16_1x2_h_bz_TNT", None),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", None),
        ("triton_poi_fused_add_0", None),
        # kernels of the nsa recipe; its loss is no attention
        ("nsa_range_forward_kernel", "nsa_range"),
        ("nsa_range_key_gradient_kernel", "nsa_range"),
        ("nsa_chosen_join_kernel", "nsa_chosen"),
        ("nsa_score_kernel", "nsa_score"),
        ("nsa_loss_kernel", None),
        ("nsa_cut_kernel", None),
        ("nsa_ranges_kernel", None),
        ("", None),
    ],
)  # fmt: skip
def test_a_name_tells_its_backend(name: str, backend: str | None) -> None:
    assert attention_backend_of(name) == backend


def test_what_a_profile_shows_longest_first() -> None:
    rows = [
        ("aten::_flash_attention_forward", 2, 0.0),
        (FLASH, 2, 0.4),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", 3, 1.0),
        ("aten::mm", 9, 7.0),
    ]
    efficient, flash = find_attention(rows)
    assert (efficient.backend, efficient.count, efficient.time_ms) == ("efficient", 3, 1.0)
    assert flash == Seen("flash", ("aten::_flash_attention_forward", FLASH), 4, 0.4)


def test_the_softmax_of_math_is_not_eager_and_wrappers_do_not_count_twice() -> None:
    assert [each.backend for each in find_attention([("aten::_softmax", 1, 1.0), (MATH, 1, 0.1)])] == ["math"]
    assert [each.backend for each in find_attention([("aten::_softmax", 1, 1.0)])] == ["eager"]
    wrapper = "ScaledDotProductFlashAttentionForCpuBackward0"
    rows = [(wrapper, 1, 2.0), (f"autograd::engine::evaluate_function: {wrapper}", 1, 3.0)]
    assert find_attention(rows) == []


def test_kernels_of_a_recipes_own_are_backends_with_counts_and_times() -> None:
    rows = [
        ("nsa_range_forward_kernel", 24, 6.0),
        ("nsa_range_query_gradient_kernel", 24, 9.0),
        ("nsa_chosen_forward_kernel", 12, 20.0),
        ("nsa_score_kernel", 12, 3.0),
        ("nsa_loss_kernel", 1, 50.0),
        ("aten::_softmax", 12, 1.0),
    ]
    chosen, ranges, scores = find_attention(rows)
    assert (chosen.backend, chosen.count, chosen.time_ms) == ("nsa_chosen", 12, 20.0)
    names = ("nsa_range_forward_kernel", "nsa_range_query_gradient_kernel")
    assert ranges == Seen("nsa_range", names, 48, 15.0)
    assert scores.backend == "nsa_score", "the softmax of gates is no attention"
    (mine,) = find_attention([("mine_forward", 1, 1.0), ("nsa_score_kernel", 1, 1.0)], own=["mine"])
    assert mine.backend == "mine"
    assert [is_own(name) for name in ("nsa_range", "mine", "torch", "flash", "eager")] == [True, True, *[False] * 3]
