//! Other methods, re-implemented from their descriptions.
//!
//! | name | method |
//! |---|---|
//! | `static_balanced` | one strategy; packs of balanced time, a multiple of the replicas |
//! | `static_first_fit` | one strategy; first-fit-decreasing packs assigned in turn |
//! | `static_sorted` | one strategy; the same packs, sorted by time and then assigned in turn |
//! | `longest_first` | one strategy; a heap assigns sequences, longest first |
//! | `karmarkar_karp` | one strategy; largest differencing assigns sequences |
//! | `buckets` | one strategy for each range of lengths, run one after another (the method of `HotSPa`) |
//! | `flexible_groups` | groups of several sizes in each of several steps, run one after another (the method of `FlexSP`) |
//! | `paper` | the Hydraulis paper's two stages, over a list of strategies |
//!
//! "One strategy" means as many replicas of one scheme as the cluster holds, for the whole run: the strategy that is
//! best in hindsight over all batches, among those that admit the longest sequence of the run.

mod buckets;
mod by_time;
mod decision;
mod equal_replicas;
mod fixed;
mod flexible_groups;
mod packs;
mod paper;
mod static_packs;

pub use buckets::Buckets;
pub(crate) use decision::part;
pub use decision::{Decision, Phase, Work};
pub use equal_replicas::EqualReplicas;
pub use fixed::{Assign, Fixed};
pub use flexible_groups::FlexibleGroups;
pub use paper::{Paper, PaperGrid, PaperStrategy, paper_list};

/// The assignment functions of the baselines with one strategy for the whole run.
pub mod assigners {
    pub use super::by_time::{karmarkar_karp, longest_first};
    pub use super::static_packs::{static_balanced, static_first_fit, static_sorted};
}
