"""Tile sizes and launch shapes per architecture. Chosen by measurement, never searched for while serving."""

from __future__ import annotations

import msgspec

from tgi_triton.expert_tiles import HOPPER_TILES, PORTABLE_TILES, ExpertTiles


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """How the kernels are cut. The defaults fit any device with 96 KiB of shared memory a program.

    Attributes:
        programs: programs that fill the device; splits are chosen so that there are about as many.
        decode_tile_bytes: bytes of keys (and again of values) that a decode program loads at a time.
        decode_warps, decode_stages: of the decode attention.
        decode_descriptors, prefill_descriptors: the copy engine fetches tiles, where they lie within one block.
        prefill_rows: queries times heads of a prefill program.
        prefill_tile_bytes: bytes of keys that a prefill program loads at a time.
        prefill_warps, prefill_stages: of the prefill attention.
        prefill_light_stages: the same where a program has many queries of few heads, or small heads.
        latent_heads, latent_tile_bytes, latent_warps, latent_stages: of attention over a latent cache: heads of a
            program, 0 where its sums do not fit into registers, and bytes of keys that it loads at a time.
            Programs of 16 heads have 4 warps.
        gemv: a linear of one row runs as a matrix-vector product of our own; otherwise the vendor's library has it.
        gemv_tile, gemv_warps: weights of a program's tile, along the inputs first, and its warps.
        sampled_warps: of the choice of a token with temperature, top-k and top-p, a row a program.
        expert_tiles: of the products of mixtures of experts, where weights have 16 bits.
        gather: programs may pick numbers out of a vector by index, for which the compiler must know how.
        dependent_launch: kernels may start while the one before drains (programmatic dependent launch, sm_90 on).
    """

    programs: int = 128
    decode_tile_bytes: int = 8192
    decode_warps: int = 4
    decode_stages: int = 2
    decode_descriptors: bool = False
    prefill_rows: int = 64
    prefill_tile_bytes: int = 8192
    prefill_warps: int = 4
    prefill_stages: int = 2
    prefill_light_stages: int = 2
    prefill_descriptors: bool = False
    latent_heads: int = 0
    latent_tile_bytes: int = 16384
    latent_warps: int = 4
    latent_stages: int = 1
    gemv: bool = False
    gemv_tile: int = 2048
    gemv_warps: int = 4
    sampled_warps: int = 32
    expert_tiles: tuple[ExpertTiles, ...] = PORTABLE_TILES
    gather: bool = True
    dependent_launch: bool = False


def cuda_tuning(major: int, minor: int, multiprocessors: int) -> Tuning:
    """The tuning for an NVIDIA device of this compute capability."""
    if major == 9:
        return Tuning(
            programs=multiprocessors,
            decode_tile_bytes=16384,
            decode_stages=2,
            decode_descriptors=True,
            prefill_rows=128,
            prefill_tile_bytes=16384,
            prefill_stages=3,
            prefill_descriptors=True,
            latent_heads=64,
            latent_tile_bytes=32768,
            latent_warps=8,
            latent_stages=2,
            gemv=True,
            expert_tiles=HOPPER_TILES,
            dependent_launch=True,
        )
    large_shared_memory = (major, minor) in {(8, 0), (10, 0), (10, 3)}
    return Tuning(
        programs=multiprocessors,
        decode_tile_bytes=16384 if large_shared_memory else 8192,
        decode_stages=3 if large_shared_memory else 2,
        prefill_rows=128 if large_shared_memory else 64,
        prefill_tile_bytes=16384 if large_shared_memory else 8192,
        latent_heads=16,
        gemv=True,
    )


def rocm_tuning(architecture: str, compute_units: int) -> Tuning:
    """The tuning for an AMD device, such as "gfx942".

    Chosen so that compiled kernels fit the local memory and keep their registers; not measured on a device.
    """
    if architecture.startswith("gfx9"):
        # A wave has 64 lanes and a program at most 1,024.
        cdna = Tuning(programs=compute_units, latent_heads=16, gemv=True, sampled_warps=16)
        if architecture != "gfx950":
            return cdna
        # 160 KiB of local memory, others have 64.
        return msgspec.structs.replace(cdna, decode_tile_bytes=16384, prefill_rows=128, prefill_tile_bytes=16384)
    # RDNA: waves of 32 lanes, each with at most 256 registers; a second stage would not fit into them.
    return Tuning(
        programs=compute_units,
        decode_tile_bytes=4096,
        decode_warps=8,
        decode_stages=1,
        prefill_tile_bytes=4096,
        prefill_warps=8,
        prefill_stages=1,
        prefill_light_stages=1,
        gemv=True,
    )


def xpu_tuning(cores: int) -> Tuning:
    """The tuning for an Intel GPU with so many Xe cores, whose warps are sub-groups of 16 lanes. Not measured."""
    # Intel's Triton 3.3 fails at a gather from a vector that several warps hold.
    return Tuning(programs=cores, prefill_warps=8, gemv=True, gemv_warps=8, gather=False)
