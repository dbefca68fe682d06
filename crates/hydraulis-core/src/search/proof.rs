//! The bound of a search.
//!
//! Of many classes most are in no plan that is shorter than the best one: by their values they leave the search and its
//! programs. What remains is divided by branching. If the plan is still far from its bound, programs make the longest
//! sequences whole.

use crate::bound::{AnyClass, Branches, ProofRange};
use crate::error::Result;
use crate::search::local_search::Search;
use crate::search::values::Values;
use crate::units::Millis;

impl<'a> Search<'a> {
    /// The undivided branch over the classes, with every time before `from` impossible.
    pub(super) fn branches(&self, from: Millis) -> Option<Branches<'a>> {
        self.bounder.of_any(&self.classes, self.task.capacities().level_ranks(), from)
    }

    /// The branches without the classes that no plan shorter than the best one has, where there are many; none if there is
    /// no such plan.
    pub(super) fn without_impossible(&mut self, branches: Branches<'a>) -> Option<Branches<'a>> {
        let is_planned = !self.evaluations.is_empty() && self.has_many();
        let values = Values::by(self.least(), &branches, &self.classes).filter(|_| is_planned);
        let Some(values) = values else { return Some(branches) };
        let possible = values.possible(&self.classes, self.cluster().gpus());
        if possible.len() == self.classes.len() {
            return Some(branches);
        }
        self.classes = possible.into_iter().map(|class| self.classes[class]).collect();
        let branches = self.branches(branches.least())?;
        self.leading = self.leading(&branches);
        Some(branches)
    }

    /// Branches the bound until the best plan is near its bound.
    pub(super) fn prove(&self, branches: &mut Branches) -> Result<()> {
        let least = self.least_bounded();
        let part = if self.has_many() { self.budget.dual_solves_part } else { 1 };
        let most = self.task.budget.dual_solves / part;
        while branches.least() < least * (1.0 - self.budget.near) && branches.len() < most {
            (self.task.cancellation)()?;
            if !branches.divide(least) {
                break;
            }
        }
        Ok(())
    }

    /// Whether programs have a part of the classes.
    pub(super) fn has_many(&self) -> bool {
        self.classes.len() > self.task.budget.bound.whole_classes
    }

    /// The bound with whole long sequences, if the best plan is far from the proven bound.
    pub(super) fn prove_long(&self, branches: &Branches) -> Result<Millis> {
        let (proven, least, long) = (branches.least(), self.least_bounded(), self.task.budget.bound.long);
        if proven >= least * (1.0 - long.far) {
            return Ok(proven);
        }
        let (until, ranks) = (least * (1.0 - self.budget.near), self.task.capacities().level_ranks());
        let &[gpus] = ranks else { return Ok(proven) };
        let Some(values) = Values::by(least, branches, &self.classes) else { return Ok(least) };
        let leading = values.leading(&self.classes, [long.classes, long.wide_classes], self.admits_longest());
        let all = || (0..self.classes.len()).collect();
        let possible = if self.has_many() { values.possible(&self.classes, gpus) } else { all() };
        let begins = (0..possible.len()).filter(|&place| leading.binary_search(&possible[place]).is_ok()).collect();
        let classes: Vec<AnyClass> = possible.into_iter().map(|class| self.classes[class]).collect();
        self.bounder.of_long(&classes, begins, gpus, ProofRange { proven, until }, self.task.cancellation)
    }
}
