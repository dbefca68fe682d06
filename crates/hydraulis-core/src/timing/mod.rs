//! The time of an iteration's transfers, and their exposed part.
//!
//! A step lasts from updated parameters at their owners to all gradients at their owners: the iteration, which takes as
//! long as its slowest replica, and the exposed time of transfers. `transfer_ms` is the step less the iteration. The
//! optimizer is part of neither.
//!
//! A [`Link`] turns the bytes of a layout's transfers into times, a [`RunLink`] does so for many iterations of one run,
//! and a [`StepTimeline`] places them on the simulated iteration, which waits for them only where it must: parameters
//! arrive layer group by layer group in the order of the first forwards; gradients leave in the opposite order after
//! the last backwards. Under sharded gradients they leave after each micro-batch, in rounds (`rounds`). Sharded
//! parameters arrive in each forward and again in each backward (`gather_rounds`).

mod exposure;
mod gather_rounds;
mod link;
mod rounds;
mod step;
mod transfer_times;

pub use exposure::{Exposure, LatestEnd};
pub use link::{Link, RunLink};
pub use rounds::{Rounds, first_round};
pub use step::{ReplicaWork, StepTimeline};
pub use transfer_times::{Traffic, TransferTimes};
