//! The balance of sequences over replicas without a cost profile.

/// The limits of a balance. The shares of replicas and slots are of the mean time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BalanceBudget {
    /// A micro-batch's longest sequences that an exchange considers. Short sequences move little time.
    pub exchanged_sequences: usize,
    /// Counterparts tried on each side of the one that would make both times equal; the nearest may not fit.
    pub counterparts: usize,
    /// Share of the time by which a balance with fewer micro-batches may take longer. On short batches the balance by
    /// time alone is as far from equal totals.
    pub longer: f64,
    /// Slots that the bound evaluates. The bound is valid for any number; beyond the first few slots no long sequence
    /// determines a slot's time.
    pub bound_slots: usize,
    /// The limits with one barrier per step.
    pub by_step: StepBalanceBudget,
    /// The limits with one barrier per micro-batch.
    pub by_slot: SlotBalanceBudget,
}

/// The limits of exchanges between replicas until their totals are nearly equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepBalanceBudget {
    /// Pairs of replicas, per replica, whose micro-batches are searched for parts to exchange. This limit takes effect
    /// on hard batches; most batches reach nearly equal totals earlier.
    pub pairs: usize,
    /// Partners tried before the search leaves the longest replica unchanged; 63 covers every partner among 64
    /// replicas. With 24 partners, one of 20 batches that fill their slots stays at 1.0010 of the ideal; with 63
    /// partners, all reach 1.0003.
    pub partners: usize,
    /// The longest replica's distance from the mean at which the search ends. With 1e-4 the search takes five times as
    /// long and gains the last 1e-5.
    pub balanced: f64,
}

/// The limits of exchanges between the micro-batches of slots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlotBalanceBudget {
    /// Pairs of micro-batches, per micro-batch, that each of the two rounds may evaluate.
    pub pairs: usize,
    /// Partners in the same slot, shortest first, tried for the longest micro-batch.
    pub partners: usize,
    /// Partners in other slots, those that may grow most first.
    pub partners_across: usize,
    /// The distance of a slot's longest micro-batch from the slot's mean at which the slot counts as balanced.
    pub balanced: f64,
}

impl BalanceBudget {
    /// The limits of every balance.
    pub const ONLINE: BalanceBudget = BalanceBudget {
        exchanged_sequences: 8,
        counterparts: 3,
        longer: 1e-3,
        bound_slots: 64,
        by_step: StepBalanceBudget { pairs: 8, partners: 63, balanced: 3e-4 },
        by_slot: SlotBalanceBudget { pairs: 3, partners: 16, partners_across: 64, balanced: 1e-3 },
    };
}
