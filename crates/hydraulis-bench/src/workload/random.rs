//! Random numbers that are the same on every machine.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// PCG, whose output is fixed by its definition: a seed gives the same batches after an update of the library.
pub(super) struct Random(Pcg64Mcg);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(Pcg64Mcg::seed_from_u64(seed))
    }

    /// A float in `(0, 1]`.
    pub(super) fn uniform(&mut self) -> f64 {
        // The 53 highest bits fill a float's significand.
        let bits = self.0.next_u64() >> 11;
        (hydraulis_core::Tokens(bits).as_f64() + 1.0) / 2.0_f64.powi(53)
    }

    /// A standard normal value (Box and Muller 1958).
    pub(super) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}
