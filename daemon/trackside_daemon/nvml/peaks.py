"""Peak FLOP/s of GPUs from their data sheets: dense tensor operations in bfloat16, or float16 before Ampere.

Data sheets often state the rate with sparsity, which is twice as high and does not apply to usual training. The numbers
here are the dense rates of products that are summed in float32. A board without a source is left out.
"""

import re
from typing import NamedTuple


class Peak(NamedTuple):
    """Peak rate of a board."""

    name: re.Pattern[str]  # pattern of NVML's product name, without the manufacturer's prefix
    flops: float  # FLOP/s
    source: str  # document with the number


def _peak(name: str, teraflops: float, source: str) -> Peak:
    return Peak(re.compile(name), teraflops * 1e12, source)


# Peaks by product; the pattern must match the whole name.
PEAKS = (
    _peak(r"V100-PCIE-\d+GB", 112, "NVIDIA V100 Tensor Core GPU data sheet, 2020"),
    _peak(r"V100-SXM\d-\d+GB", 125, "NVIDIA V100 Tensor Core GPU data sheet, 2020"),
    _peak(r"V100S-PCIE-\d+GB", 130, "NVIDIA V100 Tensor Core GPU data sheet, 2020"),
    _peak(r"T4", 65, "NVIDIA T4 Tensor Core GPU data sheet, 2019"),
    _peak(r"A10", 125, "NVIDIA A10 Tensor Core GPU data sheet, 2021"),
    _peak(r"A30", 165, "NVIDIA A30 Tensor Core GPU data sheet, 2022"),
    _peak(r"A40", 149.7, "NVIDIA A40 data sheet, 2021"),
    _peak(r"A100-(SXM4?|PCIE)-[48]0GB|A100 80GB PCIe", 312, "NVIDIA A100 Tensor Core GPU data sheet, 2021"),
    _peak(r"L4", 121, "NVIDIA L4 Tensor Core GPU data sheet, 2023 (242 with sparsity)"),
    _peak(r"L40", 181.05, "NVIDIA L40 data sheet, 2022"),
    _peak(r"L40S", 362.05, "NVIDIA L40S data sheet, 2023"),
    _peak(r"H100 PCIe", 756.5, "NVIDIA H100 Tensor Core GPU data sheet, 2022 (1,513 with sparsity)"),
    _peak(r"H100 NVL", 835.5, "NVIDIA H100 Tensor Core GPU data sheet, 2024 (1,671 with sparsity)"),
    _peak(r"H100 80GB HBM3", 989.5, "NVIDIA H100 Tensor Core GPU data sheet, 2022 (1,979 with sparsity)"),
    _peak(r"H200 NVL", 835.5, "NVIDIA H200 Tensor Core GPU data sheet, 2024 (1,671 with sparsity)"),
    _peak(r"H200", 989.5, "NVIDIA H200 Tensor Core GPU data sheet, 2024 (1,979 with sparsity)"),
    _peak(r"H20", 148, "NVIDIA H20 GPU data sheet, 2023"),
    _peak(
        r"GH200 (480GB|144G HBM3e)", 989.5, "NVIDIA GH200 Grace Hopper Superchip data sheet, 2024 (1,979 with sparsity)"
    ),
    _peak(r"B200", 2250, "NVIDIA HGX B200 data sheet, 2024 (36 petaFLOPS with sparsity of eight)"),
    _peak(r"GB200", 2500, "NVIDIA GB200 NVL72 data sheet, 2024 (360 petaFLOPS with sparsity of 72)"),
    _peak(r"GeForce RTX 3090", 71, "NVIDIA Ampere GA102 GPU architecture whitepaper, 2021"),
    _peak(r"GeForce RTX 4090", 165.2, "NVIDIA Ada GPU architecture whitepaper, 2022, appendix A"),
    _peak(
        r"RTX 6000 Ada Generation",
        364.2,
        "NVIDIA RTX 6000 Ada Generation data sheet, 2023 (1,457 in FP8 with sparsity)",
    ),
)

_MANUFACTURER = re.compile(r"^(NVIDIA|Tesla|Simulated) ")


def peak_flops(product: str) -> float | None:
    """Return the FLOP/s of a GPU by its NVML product name; None if it is not in `PEAKS`."""
    name = _MANUFACTURER.sub("", product)
    return next((peak.flops for peak in PEAKS if peak.name.fullmatch(name)), None)
