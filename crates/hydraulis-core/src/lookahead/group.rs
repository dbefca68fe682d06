//! A batch of a lookahead, as it came or after exchanges.

use crate::batch::Batch;
use crate::cancellation::Cancellation;
use crate::error::Result;
use crate::lookahead::Member;
use crate::plan::Plan;
use crate::search::Planner;

/// Sequences that are trained together, in their original order, and the best plan for them alone.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) members: Vec<Member>,
    pub(super) plan: Plan,
}

impl Group {
    /// The unchanged batch at `place`.
    pub(super) fn as_it_came(
        planner: &Planner,
        batches: &[Batch],
        place: usize,
        cancellation: Cancellation,
    ) -> Result<Group> {
        let members = (0..batches[place].len()).map(|sequence| Member { batch: place, sequence }).collect();
        Ok(Group {
            members,
            plan: planner.plan_cancellable(&batches[place], cancellation).map_err(|error| error.in_batch(place))?,
        })
    }

    /// A group of these sequences.
    pub(super) fn of(
        planner: &Planner,
        batches: &[Batch],
        members: Vec<Member>,
        cancellation: Cancellation,
    ) -> Result<Group> {
        let plan = planner.plan_cancellable(&gathered(batches, &members)?, cancellation)?;
        Ok(Group { members, plan })
    }
}

/// The batch of these sequences.
pub(super) fn gathered(batches: &[Batch], members: &[Member]) -> Result<Batch> {
    Batch::gathered(batches, members.iter().map(|member| (member.batch, member.sequence)))
}
