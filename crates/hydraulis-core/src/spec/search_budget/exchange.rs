//! The sequences that two batches of a lookahead exchange.

/// The limits of one exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExchangeBudget {
    /// Sequences that leave a batch at once. If several sequences are equally long, moving one of them gains nothing.
    pub leaving: usize,
    /// Share of both iterations that an exchange must gain.
    pub gain: f64,
}

impl ExchangeBudget {
    /// The limits of both budgets.
    pub const ONLINE: ExchangeBudget = ExchangeBudget { leaving: 4, gain: 5e-3 };
}
