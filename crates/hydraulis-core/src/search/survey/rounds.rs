//! The surveys of a search: which mixes are estimated, and which of these are planned.

use crate::bound::Branches;
use crate::error::Result;
use crate::search::local_search::Search;
use crate::search::survey::Survey;
use crate::search::values::Values;
use crate::spec::SurveyBudget;
use crate::units::Millis;

impl<'a> Search<'a> {
    /// Surveys the mixes that may end before the best plan. With many classes these are too many: a survey then has those
    /// that may end soon after the bound, and the next one later ones, until a plan is as early.
    pub(in crate::search) fn survey_all(&mut self, mut branches: Branches<'a>) -> Result<Option<Branches<'a>>> {
        let SurveyBudget { rounds, mut span, planned, planned_sequences, .. } = self.task.budget.survey;
        let most = self.evaluations.len() + planned.min(planned_sequences / self.task.batch.len());
        for _ in 0..rounds {
            let before = self.least();
            let early = if self.has_many() { branches.least() * (1.0 + span) } else { before };
            self.survey(&branches, early.min(before), most)?;
            if self.least() <= early {
                break;
            }
            span *= 2.0;
            if self.least() < before {
                match self.without_impossible(branches) {
                    Some(fewer) => branches = fewer,
                    None => return Ok(None),
                }
            }
        }
        Ok(Some(branches))
    }

    /// Evaluates the mixes of the least estimates that by their values may end by `cutoff`, until `most` plans exist, unless
    /// the best plan is near its bound.
    fn survey(&mut self, branches: &Branches, cutoff: Millis, most: usize) -> Result<()> {
        let slack = self.task.budget.survey.slack;
        let near = branches.least() >= self.least() * (1.0 - self.budget.near);
        if near || self.evaluations.len() >= most || !self.cluster().is_uniform() {
            return Ok(());
        }
        let Some(values) = Values::by(cutoff, branches, &self.classes) else { return Ok(()) };
        (self.task.cancellation)()?;
        let of_replica: Vec<f64> = self.leading.iter().map(|&class| values.of_replica[class]).collect();
        let survey = Survey::new(self.task, &self.capacities(), self.cluster().gpus());
        let (mut values, mut valued) = (values, cutoff);
        for (estimate, mix) in survey.promising(values.batch_price, &of_replica, cutoff, self.surveyed()) {
            let least = self.least();
            if self.evaluations.len() >= most || estimate > least * (1.0 + slack) {
                break;
            }
            if least < valued {
                let Some(earlier) = Values::by(least * (1.0 - self.budget.near), branches, &self.classes) else {
                    break;
                };
                (values, valued) = (earlier, least);
            }
            let mut counts = vec![0; self.classes.len()];
            for (place, number) in mix {
                counts[self.leading[place]] = number;
            }
            if values.of_counts(&counts) >= values.batch_price {
                self.evaluate_counts(&counts)?;
            }
        }
        Ok(())
    }

    /// Most mixes that a survey estimates.
    fn surveyed(&self) -> usize {
        let SurveyBudget { estimates, estimates_of_many, .. } = self.task.budget.survey;
        if self.has_many() { estimates_of_many } else { estimates }
    }
}
