//! Eight lanes of f32, in registers of AVX2 or AVX-512 or without them, with the same results bit by bit.
//!
//! Kernels are written once over [`Simd`]. Its operations are exact or rounded once per lane, and
//! [`Simd::sums`] adds lanes in one fixed order, so that a kernel's result does not depend on the
//! machine. Lanes stay eight where registers have sixteen, since more would change that order: such a
//! register has a pair of eights, each for a token of its own.
//!
//! # Invariants
//! 1. [`Portable`], [`Avx2`] and [`Avx512`] agree bit by bit (`cpu::kernels::tests`, and for a whole model
//!    `tests/invariance.rs`).
//! 2. An [`Avx2`] exists only where the processor has AVX2 and FMA: [`Avx2::detect`] alone makes
//!    one; an [`Avx512`] only where it has AVX-512 F, DQ and VL as well. Every SAFETY comment below rests on this.

use half::bf16;

/// Number of lanes.
pub(super) const LANES: usize = 8;

/// A way to compute with eight lanes.
pub(super) trait Simd: Copy + Send + Sync {
    /// Eight numbers side by side.
    type Lanes: Copy;
    /// Twice eight numbers.
    type Pair: Copy;

    /// True if a pair is one register, of 32.
    const IS_WIDE: bool;

    /// Runs `f` compiled for the instructions of this way. `f` and the functions it calls must be
    /// inlined, or they are merely slow.
    fn enter<R>(self, f: impl FnOnce() -> R) -> R;

    fn splat(self, value: f32) -> Self::Lanes;

    fn load(self, values: &[f32; LANES]) -> Self::Lanes;

    fn load_bf16(self, values: &[bf16; LANES]) -> Self::Lanes;

    fn store(self, lanes: Self::Lanes, to: &mut [f32; LANES]);

    /// Returns `a * b + c`, rounded once.
    fn mul_add(self, a: Self::Lanes, b: Self::Lanes, c: Self::Lanes) -> Self::Lanes;

    /// Sums the lanes of each: `((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))`.
    fn sums(self, lanes: [Self::Lanes; 4]) -> [f32; 4];

    /// Has the line of memory at an address fetched that is read soon, if there is one.
    fn prefetch(self, at: *const u8);

    fn pair(self, first: Self::Lanes, second: Self::Lanes) -> Self::Pair;

    fn unpair(self, pair: Self::Pair) -> [Self::Lanes; 2];

    /// Returns `a * b + c` for each, rounded once.
    fn mul_add_pair(self, a: Self::Pair, b: Self::Pair, c: Self::Pair) -> Self::Pair;
}

/// The operations on pairs of a way that has no registers for them.
macro_rules! pairs_of_two {
    () => {
        type Pair = [Self::Lanes; 2];

        const IS_WIDE: bool = false;

        #[inline(always)]
        fn pair(self, first: Self::Lanes, second: Self::Lanes) -> Self::Pair {
            [first, second]
        }

        #[inline(always)]
        fn unpair(self, pair: Self::Pair) -> [Self::Lanes; 2] {
            pair
        }

        #[inline(always)]
        fn mul_add_pair(self, a: Self::Pair, b: Self::Pair, c: Self::Pair) -> Self::Pair {
            std::array::from_fn(|of| self.mul_add(a[of], b[of], c[of]))
        }
    };
}

/// Arithmetic that every processor has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

impl Simd for Portable {
    type Lanes = [f32; LANES];

    pairs_of_two!();

    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}

    #[inline(always)]
    fn enter<R>(self, f: impl FnOnce() -> R) -> R {
        f()
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; LANES] {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> [f32; LANES] {
        *values
    }

    #[inline(always)]
    fn load_bf16(self, values: &[bf16; LANES]) -> [f32; LANES] {
        values.map(widen)
    }

    #[inline(always)]
    fn store(self, lanes: [f32; LANES], to: &mut [f32; LANES]) {
        *to = lanes;
    }

    #[inline(always)]
    fn mul_add(self, a: [f32; LANES], b: [f32; LANES], mut c: [f32; LANES]) -> [f32; LANES] {
        for lane in 0..LANES {
            c[lane] = a[lane].mul_add(b[lane], c[lane]);
        }
        c
    }

    #[inline(always)]
    fn sums(self, lanes: [[f32; LANES]; 4]) -> [f32; 4] {
        lanes.map(|[a, b, c, d, e, f, g, h]| ((a + b) + (c + d)) + ((e + f) + (g + h)))
    }
}

/// Widens a bf16, which is the upper half of an f32.
#[inline(always)]
pub(super) fn widen(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;

#[cfg(target_arch = "x86_64")]
#[expect(
    unsafe_code,
    reason = "vector instructions that not every processor has"
)]
mod avx2 {
    use std::arch::x86_64::{
        __m128i, __m256, _MM_HINT_T1, _mm_add_ps, _mm_loadu_si128, _mm_prefetch, _mm_storeu_ps,
        _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_cvtepu16_epi32, _mm256_extractf128_ps,
        _mm256_fmadd_ps, _mm256_hadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_slli_epi32,
        _mm256_storeu_ps,
    };

    use half::bf16;

    use super::{LANES, Simd};

    /// AVX2 with FMA.
    #[derive(Clone, Copy, Debug)]
    pub(in crate::cpu) struct Avx2(());

    impl Avx2 {
        /// Returns the instructions, where the processor has them.
        pub(in crate::cpu) fn detect() -> Option<Self> {
            let has = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            has.then_some(Self(()))
        }
    }

    impl Simd for Avx2 {
        type Lanes = __m256;

        pairs_of_two!();

        #[inline(always)]
        fn prefetch(self, at: *const u8) {
            // SAFETY: SSE as above; whatever the address, nothing is read that a program could see.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
        }

        #[inline(always)]
        fn enter<R>(self, f: impl FnOnce() -> R) -> R {
            // SAFETY: the processor has AVX2 and FMA, or `self` would not exist.
            unsafe { entered(f) }
        }

        #[inline(always)]
        fn splat(self, value: f32) -> __m256 {
            // SAFETY: the processor has AVX, or `self` would not exist.
            unsafe { _mm256_set1_ps(value) }
        }

        #[inline(always)]
        fn load(self, values: &[f32; LANES]) -> __m256 {
            // SAFETY: AVX as above; reads the 32 bytes of `values`, at any alignment.
            unsafe { _mm256_loadu_ps(values.as_ptr()) }
        }

        #[inline(always)]
        fn load_bf16(self, values: &[bf16; LANES]) -> __m256 {
            let from: *const __m128i = values.as_ptr().cast();
            // SAFETY: SSE2 as above; reads the 16 bytes of `values`, at any alignment.
            let halves = unsafe { _mm_loadu_si128(from) };
            // SAFETY: the processor has AVX2, or `self` would not exist.
            unsafe { widen(halves) }
        }

        #[inline(always)]
        fn store(self, lanes: __m256, to: &mut [f32; LANES]) {
            // SAFETY: AVX as above; writes the 32 bytes of `to`, at any alignment.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), lanes) }
        }

        #[inline(always)]
        fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: the processor has FMA, or `self` would not exist.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        fn sums(self, lanes: [__m256; 4]) -> [f32; 4] {
            // SAFETY: the processor has AVX, or `self` would not exist.
            unsafe { sums(lanes) }
        }
    }

    #[target_feature(enable = "avx2,fma")]
    fn entered<R>(f: impl FnOnce() -> R) -> R {
        f()
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn widen(halves: __m128i) -> __m256 {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
    }

    #[inline]
    #[target_feature(enable = "avx")]
    fn sums([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
        // Each addition of neighbours halves what is left of a vector: first 0 + 1, then
        // (0 + 1) + (2 + 3), with the upper four lanes apart until the end.
        let quads = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
        let upper = _mm256_extractf128_ps::<1>(quads);
        let sums = _mm_add_ps(_mm256_castps256_ps128(quads), upper);
        let mut to = [0.0; 4];
        // SAFETY: writes the 16 bytes of `to`, at any alignment.
        unsafe { _mm_storeu_ps(to.as_mut_ptr(), sums) };
        to
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;

#[cfg(target_arch = "x86_64")]
#[expect(
    unsafe_code,
    reason = "vector instructions that not every processor has"
)]
mod avx512 {
    use std::arch::x86_64::{
        __m256, __m512, _mm512_castps256_ps512, _mm512_castps512_ps256, _mm512_extractf32x8_ps,
        _mm512_fmadd_ps, _mm512_insertf32x8,
    };

    use half::bf16;

    use super::{Avx2, LANES, Simd};

    /// AVX-512 F, DQ and VL, for pairs of what AVX2 has registers for. Without VL half of the registers would be out
    /// of reach for one of a pair.
    #[derive(Clone, Copy, Debug)]
    pub(in crate::cpu) struct Avx512(Avx2);

    impl Avx512 {
        /// Returns the instructions, where the processor has them.
        pub(in crate::cpu) fn detect() -> Option<Self> {
            let has = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            Some(Self(Avx2::detect().filter(|_| has)?))
        }
    }

    impl Simd for Avx512 {
        type Lanes = __m256;
        type Pair = __m512;

        const IS_WIDE: bool = true;

        #[inline(always)]
        fn enter<R>(self, f: impl FnOnce() -> R) -> R {
            // SAFETY: the processor has AVX-512 F, DQ and VL, or `self` would not exist.
            unsafe { entered(f) }
        }

        #[inline(always)]
        fn splat(self, value: f32) -> __m256 {
            self.0.splat(value)
        }

        #[inline(always)]
        fn load(self, values: &[f32; LANES]) -> __m256 {
            self.0.load(values)
        }

        #[inline(always)]
        fn load_bf16(self, values: &[bf16; LANES]) -> __m256 {
            self.0.load_bf16(values)
        }

        #[inline(always)]
        fn store(self, lanes: __m256, to: &mut [f32; LANES]) {
            self.0.store(lanes, to);
        }

        #[inline(always)]
        fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
            self.0.mul_add(a, b, c)
        }

        #[inline(always)]
        fn sums(self, lanes: [__m256; 4]) -> [f32; 4] {
            self.0.sums(lanes)
        }

        #[inline(always)]
        fn prefetch(self, at: *const u8) {
            self.0.prefetch(at);
        }

        #[inline(always)]
        fn pair(self, first: __m256, second: __m256) -> __m512 {
            // SAFETY: the processor has AVX-512 F, or `self` would not exist.
            let first = unsafe { _mm512_castps256_ps512(first) };
            // SAFETY: the processor has AVX-512 DQ, or `self` would not exist.
            unsafe { _mm512_insertf32x8::<1>(first, second) }
        }

        #[inline(always)]
        fn unpair(self, pair: __m512) -> [__m256; 2] {
            // SAFETY: the processor has AVX-512 F, or `self` would not exist.
            let first = unsafe { _mm512_castps512_ps256(pair) };
            // SAFETY: the processor has AVX-512 DQ, or `self` would not exist.
            [first, unsafe { _mm512_extractf32x8_ps::<1>(pair) }]
        }

        #[inline(always)]
        fn mul_add_pair(self, a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: the processor has AVX-512 F, or `self` would not exist.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx2,fma")]
    fn entered<R>(f: impl FnOnce() -> R) -> R {
        f()
    }
}
