//! Chooses the strategy, the dispatch and the packing of each batch together.

use crate::cost::{CostModel, CostProfile, SchemeCost};
use crate::error::{Error, Result};
use crate::lengths::Batch;
use crate::plan::attempt::{Attempt, TIE, Task, best};
use crate::plan::bound::{any_strategy_bound, lower_bound};
use crate::plan::document::FORMAT;
use crate::plan::search::Search;
use crate::plan::{Bound, Considered, Outcome, Plan, ReplicaPlan, Scope, Violation, check};
use crate::spec::{Cluster, Scheme, Strategy};
use crate::strategy::{candidates, mixes, place, usable_schemes};
use crate::units::{Millis, Tokens, count};

/// Plans batches for one model on one cluster.
#[derive(Clone, Debug)]
pub struct Planner {
    cost: CostModel,
    choice: Choice,
}

/// What a planner may choose from.
#[derive(Clone, Debug)]
enum Choice {
    /// These strategies.
    List(Vec<Strategy>),
    /// Any set of replicas of the pool's schemes; the search begins with the starts.
    Any { pool: Vec<Scheme>, starts: Vec<Strategy> },
}

/// What came of a batch: the attempts, every strategy that was considered, and a bound on all of them.
struct Considerations {
    attempts: Vec<Attempt>,
    considered: Vec<Considered>,
    bound: Option<Bound>,
    scope: Scope,
}

impl Planner {
    /// A planner over `strategies`, or over the profile's own list.
    ///
    /// Every strategy must fit the cluster and use schemes that the profile knows and memory admits.
    pub fn new(profile: CostProfile, cluster: Cluster, strategies: Option<Vec<Strategy>>) -> Result<Planner> {
        let cost = CostModel::new(profile, cluster);
        let given = match strategies {
            Some(list) if list.is_empty() => return Err(Error::NoStrategies),
            Some(list) => list,
            None => candidates(&cost),
        };
        let mut list: Vec<Strategy> = Vec::new();
        for strategy in given {
            place(&strategy, cluster)?;
            strategy.groups().iter().try_for_each(|(scheme, _)| cost.scheme(*scheme).map(drop))?;
            if !list.contains(&strategy) {
                list.push(strategy);
            }
        }
        if list.is_empty() {
            return Err(cost.nothing_fits());
        }
        Ok(Planner { cost, choice: Choice::List(list) })
    }

    /// A planner that searches the set of replicas itself, anew for each batch.
    pub fn search(profile: CostProfile, cluster: Cluster) -> Result<Planner> {
        let cost = CostModel::new(profile, cluster);
        let (pool, starts) = (usable_schemes(&cost), mixes(&cost));
        if starts.is_empty() {
            return Err(cost.nothing_fits());
        }
        Ok(Planner { cost, choice: Choice::Any { pool, starts } })
    }

    /// The costs planned with.
    pub fn cost(&self) -> &CostModel {
        &self.cost
    }

    /// The strategies chosen from; those that a search begins with.
    pub fn strategies(&self) -> &[Strategy] {
        match &self.choice {
            Choice::List(list) => list,
            Choice::Any { starts, .. } => starts,
        }
    }

    /// The longest sequence that some strategy admits.
    pub fn longest_admitted(&self) -> Tokens {
        self.widest().map(SchemeCost::cap).unwrap_or_default()
    }

    /// The plan of least iteration time found, with a proven bound.
    ///
    /// Strategies of a list are tried in the order of their lower bounds, and those whose bound is above the
    /// best plan are not tried at all. Among plans equal within 0.1 % the one of fewest GPU-seconds wins, then
    /// name order. The same batch always gives the same plan.
    pub fn plan(&self, batch: &Batch) -> Result<Plan> {
        let task = Task::new(batch, &self.cost);
        let Considerations { attempts, considered, bound, scope } = match &self.choice {
            Choice::List(list) => self.consider_list(&task, list)?,
            Choice::Any { pool, starts } => self.consider_any(&task, pool, starts)?,
        };
        let (Some(chosen), Some(lower_bound)) = (best(attempts), bound) else { return Err(self.too_long(batch)) };
        Ok(Plan {
            format: FORMAT.into(),
            profile: self.cost.profile().name.clone(),
            cluster: self.cost.cluster(),
            batch: batch.clone(),
            replicas: self.replicas(batch, &chosen)?,
            strategy: chosen.strategy,
            iteration_ms: chosen.iteration_ms,
            lower_bound,
            scope,
            stop: chosen.stop,
            considered,
        })
    }

    /// Every promise that `plan` breaks for `batch`; see [`check()`].
    pub fn check(&self, plan: &Plan, batch: &Batch) -> Vec<Violation> {
        check(plan, batch, &self.cost)
    }

    fn consider_list(&self, task: &Task, list: &[Strategy]) -> Result<Considerations> {
        let bounds: Vec<Option<Bound>> = list.iter().map(|strategy| self.bound(task.batch, strategy)).collect();
        let known = |(index, bound): (usize, &Option<Bound>)| Some((bound.as_ref()?.ms, index));
        let mut promising: Vec<(Millis, usize)> = bounds.iter().enumerate().filter_map(known).collect();
        promising.sort_unstable();
        let mut least = Millis::INFINITY;
        let mut attempts: Vec<Attempt> = Vec::new();
        for &(bound, index) in &promising {
            if bound <= least * (1.0 + TIE) {
                let attempt = task.attempt(&list[index])?;
                least = least.min(attempt.iteration_ms);
                attempts.push(attempt);
            }
        }
        let considered = list.iter().zip(&bounds).map(|(strategy, bound)| {
            let attempt = attempts.iter().find(|attempt| attempt.strategy == *strategy);
            let outcome = match (attempt, bound) {
                (Some(attempt), _) => Outcome::Planned(attempt.iteration_ms),
                (None, Some(bound)) => Outcome::Pruned(bound.ms),
                (None, None) => Outcome::TooNarrow(self.admitted_by(strategy)),
            };
            Considered { strategy: strategy.clone(), outcome }
        });
        let considered = considered.collect();
        let bound = bounds.into_iter().flatten().min_by_key(|bound| bound.ms);
        Ok(Considerations { attempts, considered, bound, scope: Scope::List })
    }

    fn consider_any(&self, task: &Task, pool: &[Scheme], starts: &[Strategy]) -> Result<Considerations> {
        let attempts = Search::run(task, pool, starts)?;
        let considered = attempts.iter().map(|attempt| Considered {
            strategy: attempt.strategy.clone(),
            outcome: Outcome::Planned(attempt.iteration_ms),
        });
        let considered = considered.collect();
        let costs = pool.iter().map(|&scheme| self.cost.scheme(scheme)).collect::<Result<Vec<_>>>()?;
        let bound = any_strategy_bound(task.batch, &costs, self.cost.cluster().gpus());
        Ok(Considerations { attempts, considered, bound, scope: Scope::Any })
    }

    /// The bound of one strategy; none where it admits not every sequence.
    fn bound(&self, batch: &Batch, strategy: &Strategy) -> Option<Bound> {
        let groups = strategy.groups();
        let groups = groups.iter().map(|(scheme, replicas)| Some((self.cost.scheme(*scheme).ok()?, *replicas)));
        lower_bound(batch, &groups.collect::<Option<Vec<_>>>()?)
    }

    fn replicas(&self, batch: &Batch, chosen: &Attempt) -> Result<Vec<ReplicaPlan>> {
        let ranks = place(&chosen.strategy, self.cost.cluster())?;
        let parts = chosen.strategy.schemes().iter().zip(ranks).zip(&chosen.packings);
        let replicas = parts.map(|((&scheme, ranks), packing)| {
            let cost = self.cost.scheme(scheme)?;
            let time = |ids: &Vec<usize>| cost.micro_batch_ms(ids.iter().map(|&id| batch.tokens()[id]));
            let stage_mean = cost.stage_multipliers().iter().sum::<f64>() / count(scheme.stages());
            Ok(ReplicaPlan {
                scheme,
                ranks,
                busy_ms: packing.micro_batches.iter().map(time).sum::<Millis>() * stage_mean,
                micro_batches: packing.micro_batches.clone(),
                cap_tokens: cost.cap(),
                predicted_ms: packing.ms,
            })
        });
        replicas.collect()
    }

    fn admitted_by(&self, strategy: &Strategy) -> Tokens {
        let caps = strategy.schemes().iter().filter_map(|&scheme| self.cost.scheme(scheme).ok());
        caps.map(SchemeCost::cap).max().unwrap_or_default()
    }

    fn widest(&self) -> Option<&SchemeCost> {
        let schemes = self.strategies().iter().flat_map(Strategy::schemes);
        schemes.filter_map(|&scheme| self.cost.scheme(scheme).ok()).max_by_key(|cost| cost.cap())
    }

    fn too_long(&self, batch: &Batch) -> Error {
        let (sequence, tokens) = batch.longest();
        let subject = match &self.choice {
            Choice::List(list) if list.len() == 1 => format!("strategy {}", list[0]),
            Choice::List(list) => format!("any of the {} strategies", list.len()),
            Choice::Any { .. } => "any strategy".into(),
        };
        let on = self.widest().map(|cost| format!(" (on {})", cost.scheme())).unwrap_or_default();
        Error::SequenceTooLong { sequence, tokens, subject, limit: self.longest_admitted(), on }
    }
}
