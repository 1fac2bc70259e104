//! Operations for which compilers generate no good vector instructions by themselves, for each
//! instruction set.

use crate::code::Rounding;
use crate::lanes::Chunk;
use crate::number::float::number;
use crate::number::half::{F16, Half, single};

/// Computes `fma.rn.f32` of one lane.
#[inline(always)]
pub(in crate::interp) fn fma32(x: u32, y: u32, z: u32) -> u32 {
    number(f32::from_bits(x).mul_add(f32::from_bits(y), f32::from_bits(z)))
}

/// Lanes of half a warp.
pub(in crate::interp) const HALF: usize = 16;

/// Rounding modes as the host's instructions number them.
pub(in crate::interp) const NEAREST: i32 = 0;
pub(in crate::interp) const DOWN: i32 = 1;
pub(in crate::interp) const UP: i32 = 2;
pub(in crate::interp) const ZERO: i32 = 3;

/// An instruction set that bodies are compiled for.
pub(crate) trait Isa {
    /// Whether `mul_add` is an instruction, rather than a function call.
    const HAS_FMA: bool;

    /// Whether in both halves of the row each lane is `STEP` more than the one before it.
    ///
    /// # Safety
    /// The host must have this instruction set.
    unsafe fn follows32<const STEP: usize>(row: &[u32; 32]) -> bool;

    /// # Safety
    /// The host must have this instruction set.
    unsafe fn follows64<const STEP: usize>(row: &[u64; 32]) -> bool;

    /// Returns the lanes whose value is not zero, one bit each; values must be zero or all ones.
    ///
    /// # Safety
    /// The host must have this instruction set.
    unsafe fn bits32(lanes: Chunk) -> u32;

    /// Computes `fma.rn.f32` of eight lanes.
    ///
    /// # Safety
    /// The host must have this instruction set.
    unsafe fn fma(x: Chunk, y: Chunk, z: Chunk) -> Chunk;

    /// Returns for each lane the value of the lane named by the lowest five bits of `sources`.
    ///
    /// # Safety
    /// The host must have this instruction set.
    unsafe fn permute32(row: &[u32; 32], sources: &[u32; 32]) -> [u32; 32];

    /// Permutes eight lanes, as `permute32` does 32.
    ///
    /// # Safety
    /// The host must have this instruction set.
    unsafe fn permute8(lanes: Chunk, sources: Chunk) -> Chunk;

    /// Widens eight `f16` to single precision. NaN stays NaN.
    ///
    /// # Safety
    /// The host must have this instruction set.
    unsafe fn widen_f16(x: Chunk) -> Chunk;

    /// Widens sixteen `f16`, in an order that `narrow_f16x2` reverses.
    ///
    /// # Safety
    /// The host must have this instruction set.
    unsafe fn widen_f16x2(x: Chunk) -> [Chunk; 2];

    /// Narrows eight singles to `f16` with one of this module's rounding modes. The NaN that
    /// arithmetic produces becomes `0x7fff`.
    ///
    /// # Safety
    /// The host must have this instruction set.
    unsafe fn narrow_f16<const ROUNDING: i32>(x: Chunk) -> Chunk;

    /// # Safety
    /// The host must have this instruction set.
    unsafe fn narrow_f16x2<const ROUNDING: i32>(x: [Chunk; 2]) -> Chunk;

    /// Transposes eight lanes of four contiguous words into the lanes of each word.
    ///
    /// # Safety
    /// The host must have this instruction set.
    unsafe fn split4(words: [Chunk; 4]) -> [Chunk; 4];

    /// Reverses `split4`.
    ///
    /// # Safety
    /// The host must have this instruction set.
    unsafe fn join4(lanes: [Chunk; 4]) -> [Chunk; 4];
}

pub(in crate::interp) struct Baseline;

impl Isa for Baseline {
    const HAS_FMA: bool = false;

    #[inline(always)]
    unsafe fn follows32<const STEP: usize>(row: &[u32; 32]) -> bool {
        let mut different = 0;
        for l in 0..32 {
            let expected = row[l / HALF * HALF].wrapping_add((l % HALF * STEP) as u32);
            different |= row[l] ^ expected;
        }
        different == 0
    }

    #[inline(always)]
    unsafe fn follows64<const STEP: usize>(row: &[u64; 32]) -> bool {
        let mut different = 0;
        for l in 0..32 {
            let expected = row[l / HALF * HALF].wrapping_add((l % HALF * STEP) as u64);
            different |= row[l] ^ expected;
        }
        different == 0
    }

    #[inline(always)]
    unsafe fn bits32(lanes: Chunk) -> u32 {
        let mut bits = 0;
        for (l, lane) in lanes.into_iter().enumerate() {
            bits |= lane & 1 << l;
        }
        bits
    }

    #[inline(always)]
    unsafe fn fma(x: Chunk, y: Chunk, z: Chunk) -> Chunk {
        std::array::from_fn(|l| fma32(x[l], y[l], z[l]))
    }

    #[inline(always)]
    unsafe fn permute32(row: &[u32; 32], sources: &[u32; 32]) -> [u32; 32] {
        sources.map(|source| row[source as usize & 31])
    }

    #[inline(always)]
    unsafe fn permute8(lanes: Chunk, sources: Chunk) -> Chunk {
        sources.map(|source| lanes[source as usize & 7])
    }

    #[inline(always)]
    unsafe fn widen_f16(x: Chunk) -> Chunk {
        x.map(|half| single(half).to_bits())
    }

    #[inline(always)]
    unsafe fn widen_f16x2(x: Chunk) -> [Chunk; 2] {
        [0, 16].map(|shift| x.map(|pair| single(pair >> shift & 0xffff).to_bits()))
    }

    #[inline(always)]
    unsafe fn narrow_f16<const ROUNDING: i32>(x: Chunk) -> Chunk {
        x.map(narrowed::<ROUNDING>)
    }

    #[inline(always)]
    unsafe fn narrow_f16x2<const ROUNDING: i32>([low, high]: [Chunk; 2]) -> Chunk {
        let mut out = low.map(narrowed::<ROUNDING>);
        for (out, high) in out.iter_mut().zip(high) {
            *out |= narrowed::<ROUNDING>(high) << 16;
        }
        out
    }

    #[inline(always)]
    unsafe fn split4(words: [Chunk; 4]) -> [Chunk; 4] {
        let words = words.as_flattened();
        std::array::from_fn(|i| std::array::from_fn(|l| words[l * 4 + i]))
    }

    #[inline(always)]
    unsafe fn join4(lanes: [Chunk; 4]) -> [Chunk; 4] {
        std::array::from_fn(|i| std::array::from_fn(|w| lanes[w % 4][i * 2 + w / 4]))
    }
}

fn narrowed<const ROUNDING: i32>(x: u32) -> u32 {
    let rounding = match ROUNDING {
        NEAREST => Rounding::Nearest,
        DOWN => Rounding::Down,
        UP => Rounding::Up,
        _ => Rounding::Zero,
    };
    F16::from_f64(f32::from_bits(x).into(), rounding)
}

#[cfg(target_arch = "x86_64")]
pub(in crate::interp) use x86::Avx2;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256, __m256i, _CMP_UNORD_Q, _mm256_add_epi32, _mm256_add_epi64, _mm256_and_si256,
        _mm256_blendv_epi8, _mm256_blendv_ps, _mm256_castsi256_ps, _mm256_castsi256_si128,
        _mm256_cmp_ps, _mm256_cmpeq_epi32, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_ph,
        _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
        _mm256_movemask_ps, _mm256_or_si256, _mm256_packus_epi32, _mm256_permute2x128_si256,
        _mm256_permute4x64_epi64, _mm256_permutevar8x32_epi32, _mm256_set_m128i, _mm256_set1_epi32,
        _mm256_set1_epi64x, _mm256_setr_epi32, _mm256_setr_epi64x, _mm256_setzero_si256,
        _mm256_srli_epi32, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_testz_si256,
        _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
        _mm256_xor_si256,
    };

    use super::{HALF, Isa};
    use crate::lanes::Chunk;
    use crate::number::float::NAN_BITS;

    pub(in crate::interp) struct Avx2;

    impl Isa for Avx2 {
        const HAS_FMA: bool = true;

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn follows32<const STEP: usize>(row: &[u32; 32]) -> bool {
            let s = STEP as i32;
            let low = _mm256_setr_epi32(0, s, 2 * s, 3 * s, 4 * s, 5 * s, 6 * s, 7 * s);
            let high = _mm256_add_epi32(low, _mm256_set1_epi32(8 * s));
            let mut different = _mm256_setzero_si256();
            for (half, lanes) in row.as_chunks::<HALF>().0.iter().enumerate() {
                let first = _mm256_set1_epi32(row[half * HALF] as i32);
                let at: *const __m256i = lanes.as_ptr().cast();
                // SAFETY: half a row has two vectors.
                let (x, y) = unsafe { (_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1))) };
                let x = _mm256_xor_si256(x, _mm256_add_epi32(first, low));
                let y = _mm256_xor_si256(y, _mm256_add_epi32(first, high));
                different = _mm256_or_si256(different, _mm256_or_si256(x, y));
            }
            _mm256_testz_si256(different, different) != 0
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn follows64<const STEP: usize>(row: &[u64; 32]) -> bool {
            let s = STEP as i64;
            let steps = _mm256_setr_epi64x(0, s, 2 * s, 3 * s);
            let next = _mm256_set1_epi64x(4 * s);
            let mut different = _mm256_setzero_si256();
            for (half, lanes) in row.as_chunks::<HALF>().0.iter().enumerate() {
                let first = _mm256_set1_epi64x(row[half * HALF] as i64);
                let mut expected = _mm256_add_epi64(first, steps);
                for i in 0..HALF / 4 {
                    // SAFETY: half a row has four vectors.
                    let x = unsafe { _mm256_loadu_si256(lanes.as_ptr().cast::<__m256i>().add(i)) };
                    different = _mm256_or_si256(different, _mm256_xor_si256(x, expected));
                    expected = _mm256_add_epi64(expected, next);
                }
            }
            _mm256_testz_si256(different, different) != 0
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn bits32(lanes: Chunk) -> u32 {
            // SAFETY: eight lanes have the size of a vector.
            let lanes = unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) };
            _mm256_movemask_ps(_mm256_castsi256_ps(lanes)) as u32
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn fma(x: Chunk, y: Chunk, z: Chunk) -> Chunk {
            let [x, y, z] = [x, y, z].map(|lanes| {
                // SAFETY: eight lanes have the size of a vector.
                unsafe { _mm256_loadu_ps(lanes.as_ptr().cast()) }
            });
            let sum = _mm256_fmadd_ps(x, y, z);
            let nan = _mm256_castsi256_ps(_mm256_set1_epi32(NAN_BITS as i32));
            let sum = _mm256_blendv_ps(sum, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(sum, sum));
            let mut out = [0; 8];
            // SAFETY: eight lanes have the size of a vector.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr().cast(), sum) };
            out
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn permute32(row: &[u32; 32], sources: &[u32; 32]) -> [u32; 32] {
            const VECTORS: usize = 4;
            let mut value = [0; 32];
            let (rows, from): (*const __m256i, *const __m256i) =
                (row.as_ptr().cast(), sources.as_ptr().cast());
            let to: *mut __m256i = value.as_mut_ptr().cast();
            for i in 0..VECTORS {
                // SAFETY: a row has four vectors.
                unsafe {
                    let lane = _mm256_loadu_si256(from.add(i));
                    let vector =
                        _mm256_and_si256(_mm256_srli_epi32::<3>(lane), _mm256_set1_epi32(3));
                    let mut out = _mm256_permutevar8x32_epi32(_mm256_loadu_si256(rows), lane);
                    for j in 1..VECTORS {
                        let there =
                            _mm256_permutevar8x32_epi32(_mm256_loadu_si256(rows.add(j)), lane);
                        let here = _mm256_cmpeq_epi32(vector, _mm256_set1_epi32(j as i32));
                        out = _mm256_blendv_epi8(out, there, here);
                    }
                    _mm256_storeu_si256(to.add(i), out);
                }
            }
            value
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn permute8(lanes: Chunk, sources: Chunk) -> Chunk {
            let mut out = [0; 8];
            // SAFETY: eight lanes have the size of a vector.
            unsafe {
                let lanes = _mm256_loadu_si256(lanes.as_ptr().cast());
                let sources = _mm256_loadu_si256(sources.as_ptr().cast());
                let permuted = _mm256_permutevar8x32_epi32(lanes, sources);
                _mm256_storeu_si256(out.as_mut_ptr().cast(), permuted);
            }
            out
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn widen_f16(x: Chunk) -> Chunk {
            // SAFETY: eight lanes have the size of a vector.
            let x = unsafe { _mm256_loadu_si256(x.as_ptr().cast()) };
            // Packs words to halves, in both parts of the vector, then selects the parts that are
            // not duplicates.
            let halves = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(x, x));
            lanes(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)))
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn widen_f16x2(x: Chunk) -> [Chunk; 2] {
            // SAFETY: eight lanes have the size of a vector.
            let x = unsafe { _mm256_loadu_si256(x.as_ptr().cast()) };
            let (low, high) = (_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            [lanes(_mm256_cvtph_ps(low)), lanes(_mm256_cvtph_ps(high))]
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn narrow_f16<const ROUNDING: i32>(x: Chunk) -> Chunk {
            // SAFETY: eight lanes have the size of a vector.
            let x = unsafe { _mm256_loadu_ps(x.as_ptr().cast()) };
            let halves = _mm256_cvtps_ph::<ROUNDING>(x);
            lanes(_mm256_castsi256_ps(_mm256_cvtepu16_epi32(halves)))
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn narrow_f16x2<const ROUNDING: i32>(x: [Chunk; 2]) -> Chunk {
            // SAFETY: eight lanes have the size of a vector.
            let [low, high] = unsafe {
                [
                    _mm256_cvtps_ph::<ROUNDING>(_mm256_loadu_ps(x[0].as_ptr().cast())),
                    _mm256_cvtps_ph::<ROUNDING>(_mm256_loadu_ps(x[1].as_ptr().cast())),
                ]
            };
            lanes(_mm256_castsi256_ps(_mm256_set_m128i(high, low)))
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn split4(words: [Chunk; 4]) -> [Chunk; 4] {
            let [a, b, c, d] = words.map(|lane| vector(lane));
            let (a, b, c, d) = transposed(
                _mm256_permute2x128_si256::<0x20>(a, c),
                _mm256_permute2x128_si256::<0x31>(a, c),
                _mm256_permute2x128_si256::<0x20>(b, d),
                _mm256_permute2x128_si256::<0x31>(b, d),
            );
            [a, b, c, d].map(|lane| lanes(_mm256_castsi256_ps(lane)))
        }

        #[inline]
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        unsafe fn join4(values: [Chunk; 4]) -> [Chunk; 4] {
            let [a, b, c, d] = values.map(|lane| vector(lane));
            let (a, b, c, d) = transposed(a, b, c, d);
            [
                _mm256_permute2x128_si256::<0x20>(a, b),
                _mm256_permute2x128_si256::<0x20>(c, d),
                _mm256_permute2x128_si256::<0x31>(a, b),
                _mm256_permute2x128_si256::<0x31>(c, d),
            ]
            .map(|lane| lanes(_mm256_castsi256_ps(lane)))
        }
    }

    /// Transposes four rows of four, in both halves of vectors.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    fn transposed(
        a: __m256i,
        b: __m256i,
        c: __m256i,
        d: __m256i,
    ) -> (__m256i, __m256i, __m256i, __m256i) {
        let (low_ab, low_cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
        let (high_ab, high_cd) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
        (
            _mm256_unpacklo_epi64(low_ab, low_cd),
            _mm256_unpackhi_epi64(low_ab, low_cd),
            _mm256_unpacklo_epi64(high_ab, high_cd),
            _mm256_unpackhi_epi64(high_ab, high_cd),
        )
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    fn vector(lanes: Chunk) -> __m256i {
        // SAFETY: eight lanes have the size of a vector.
        unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    fn lanes(vector: __m256) -> Chunk {
        let mut out = [0; 8];
        // SAFETY: eight lanes have the size of a vector.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr().cast(), vector) };
        out
    }
}
