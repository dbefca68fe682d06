//! The mixes of a few schemes that a search estimates.

/// The limits of a survey of mixes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SurveyBudget {
    /// Most schemes of a mix.
    pub schemes: usize,
    /// Schemes surveyed, those whose ranks have the greatest value.
    pub classes: usize,
    /// Schemes surveyed of those that admit the longest sequence but whose ranks have less value.
    pub wide_classes: usize,
    /// Numbers of replicas of the second of three schemes, about; the last one takes the ranks that are left. Local search
    /// tries the numbers between. Of the first scheme every number is tried: with few sequences on each replica, mixes of
    /// two schemes end up to 2.4 % apart from one number to the next.
    pub steps: u64,
    /// Numbers of replicas tried while mixes are enumerated. 64 GPUs and 13 schemes have 2,400 mixes of three schemes.
    /// A survey that needs more is left out.
    pub counts: usize,
    /// Mixes estimated, those of the greatest value by the bound's dual prices.
    pub estimates: usize,
    /// The same where programs of the bound have a part of the classes.
    pub estimates_of_many: usize,
    /// Mixes planned, those of the least estimates.
    pub planned: usize,
    /// Sequences of the mixes planned: a mix of few sequences takes little work, and its estimate says less.
    pub planned_sequences: usize,
    /// Surveys of one batch where programs of the bound have a part of the classes.
    pub rounds: usize,
    /// Share of the time after the bound by which the first of them ends; each further one ends twice as late.
    pub span: f64,
    /// Share of the best time by which an estimate may be later.
    pub slack: f64,
    /// The same where replicas have few sequences each: the estimates of such mixes may be 9 % later than the plans.
    pub slack_of_few: f64,
    /// The same for estimates by first fit, which are mostly earlier than the plans.
    pub slack_of_first_fit: f64,
    /// Denominator of a portion of the batch: an estimate assigns the sequences of this part of the remaining tokens
    /// together.
    pub portion: u64,
    /// Denominator of the least portion of the batch.
    pub least_portion: u64,
}

impl SurveyBudget {
    /// The limits of both budgets.
    pub const ONLINE: SurveyBudget = SurveyBudget {
        schemes: 3,
        classes: 13,
        wide_classes: 4,
        steps: 16,
        counts: 400_000,
        estimates: 32_000,
        estimates_of_many: 3_000,
        planned: 64,
        planned_sequences: 4_000,
        rounds: 4,
        span: 0.05,
        slack: 0.1,
        slack_of_few: 0.12,
        slack_of_first_fit: 0.02,
        portion: 32,
        least_portion: 1_500,
    };
}
