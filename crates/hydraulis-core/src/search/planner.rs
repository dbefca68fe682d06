//! Chooses the strategy, the dispatch and the packing of each batch together.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::batch::Batch;
use crate::bound::{AnyClass, Bounder, ProofLimit};
use crate::cancellation::{Cancellation, NEVER_CANCELLED};
use crate::capacity::Capacities;
use crate::check::{Violation, check};
use crate::construct::{
    candidates, mixes, nothing_fits, undominated, usable_schemes, usable_strategies, with_layer_splits,
};
use crate::cost::{ClassCost, CostModel, CostProfile};
use crate::error::{Admitting, Error, Result, StrategyError};
use crate::plan::FORMAT;
use crate::plan::{Bound, Plan, ReplicaPlan, Scope};
use crate::search::evaluation::{Evaluation, Found};
use crate::search::local_search::{Search, SimpleStrategies};
use crate::search::objective::{Objective, StepTime, StepTimeWithIterationBound};
use crate::search::task::Task;
use crate::spec::{CapacityBudget, Cluster, MemoryRule, Scheme, SearchBudget, Strategy};
use crate::timing::{Exposure, Link, RunLink};
use crate::units::{Millis, Tokens, count};

/// Plans batches for one model on one cluster.
#[derive(Clone, Debug)]
pub struct Planner {
    /// The capacities in each order of placement, that of the fastest ranks first.
    by_order: Vec<Capacities>,
    /// With the in-flight limit, also the capacities by the per-micro-batch limit: plans within that limit are often
    /// shorter than plans found without it.
    by_cap: Option<Vec<Capacities>>,
    choice: Choice,
    budget: SearchBudget,
    link: Option<Arc<RunLink>>,
    /// The least exposure to transfers of each stage of replicas of each scheme; none if bounds do not count transfers.
    exposures: Arc<BTreeMap<Scheme, Vec<Exposure>>>,
}

/// The strategies that a planner may choose from.
#[derive(Clone, Debug)]
enum Choice {
    /// The strategies of this list.
    List(Vec<Strategy>),
    /// Any set of replicas of the pool's schemes; without a link, no scheme of the pool dominates another. `mixes` are evaluated
    /// if the search's initial strategies admit no plan, and `listed` if the search stays far from its bound.
    Any { pool: Vec<Scheme>, mixes: Vec<Strategy>, listed: Vec<Strategy> },
}

impl Planner {
    /// A planner over `strategies`, or over the profile's own list.
    ///
    /// Every strategy must fit the cluster and use schemes that memory admits, and that the profile has or
    /// [derives](CostProfile::with_derived). On ranks of
    /// different speed or memory, the list has strategies too whose slow stages have fewer layers, where the profile has
    /// such splits.
    pub fn new(profile: CostProfile, cluster: Cluster, strategies: Option<Vec<Strategy>>) -> Result<Planner> {
        let listed = strategies.as_deref().unwrap_or_default();
        let profile = profile.with_derived(&listed.iter().flat_map(Strategy::schemes).copied().collect::<Vec<_>>())?;
        let cost = CostModel::new(profile, cluster);
        cost.check_devices()?;
        let given = match strategies {
            Some(list) if list.is_empty() => return Err(StrategyError::NoneGiven.into()),
            Some(list) => list,
            None => candidates(&cost, || mixes(&cost)),
        };
        let list = with_layer_splits(usable_strategies(given, &cost)?, &cost);
        Ok(Planner {
            by_order: Capacities::new(cost, SearchBudget::ONLINE.capacity).in_each_order(),
            by_cap: None,
            choice: Choice::List(list),
            budget: SearchBudget::ONLINE,
            link: None,
            exposures: Arc::default(),
        })
    }

    /// A planner of the same costs over `strategies`.
    pub(crate) fn with_strategies(&self, strategies: Vec<Strategy>) -> Result<Planner> {
        let list = usable_strategies(strategies, self.cost())?;
        Ok(Planner { choice: Choice::List(list), ..self.clone() })
    }

    /// A planner that searches the set of replicas for each batch.
    pub fn search(profile: CostProfile, cluster: Cluster) -> Result<Planner> {
        let cost = CostModel::new(profile, cluster);
        cost.check_devices()?;
        let mixes = mixes(&cost);
        if mixes.is_empty() {
            return Err(nothing_fits(&cost));
        }
        let pool = undominated(&usable_schemes(&cost), &cost);
        // The mixes of a hundred thousand GPUs take seconds.
        let listed = candidates(&cost, || mixes.clone());
        let choice = Choice::Any { pool, mixes, listed };
        let budget = SearchBudget::ONLINE;
        let by_order = Capacities::new(cost, budget.capacity).in_each_order();
        Ok(Planner { by_order, by_cap: None, choice, budget, link: None, exposures: Arc::default() })
    }

    /// The same planner with another budget.
    #[must_use]
    pub fn with_budget(self, budget: SearchBudget) -> Planner {
        let in_each = |known: &[Capacities]| self.capacities_of(known[0].cost().clone(), budget.capacity);
        let by_cap = self.by_cap.as_deref().map(in_each);
        Planner { by_order: in_each(&self.by_order), by_cap, budget, ..self }
    }

    /// The same planner with another memory rule.
    #[must_use]
    pub fn with_memory(self, memory: MemoryRule) -> Planner {
        // The usable schemes and strategies depend on token caps alone, which are the same under every rule.
        let in_each = |memory| self.capacities_of(self.cost().clone().with_memory(memory), self.budget.capacity);
        let by_cap = (memory == MemoryRule::InFlight).then(|| in_each(MemoryRule::PerMicroBatch));
        let planner = Planner { by_order: in_each(memory), by_cap, ..self };
        // The rule decides which scheme dominates another.
        planner.with_pool(|_| true)
    }

    /// The same planner, with steps over `link` as its objective: iterations with their transfers.
    ///
    /// Refused with `scheme_model_mismatch` if a scheme has more stages than the link's model has layers.
    pub fn with_link(self, link: Link) -> Result<Planner> {
        for scheme in self.schemes() {
            link.admits(scheme)?;
        }
        let link = RunLink::new(link, self.cost().cluster(), &self.cost().profile().every_scheme())?;
        let exposures = Arc::new(least_exposures(&link, self.cost())?);
        let budget = self.budget;
        // Capacities depend on the exposures.
        let planner = Planner { link: Some(Arc::new(link)), exposures, ..self }.with_budget(budget);
        Ok(planner.with_pool(|_| true))
    }

    /// The capacities under `cost` in each order of placement, by the end of a step if bounds count transfers.
    fn capacities_of(&self, cost: CostModel, budget: CapacityBudget) -> Vec<Capacities> {
        Capacities::exposed(cost, budget, |scheme| self.exposures.get(&scheme).map(Vec::as_slice)).in_each_order()
    }

    /// The same planner; a search has those of the usable schemes that are chosen. Without a link, dominated ones are left
    /// out; with one, a dominated scheme may move fewer bytes.
    pub(super) fn with_pool(mut self, is_chosen: impl Fn(&Scheme) -> bool) -> Planner {
        let chosen: Vec<Scheme> = usable_schemes(self.cost()).into_iter().filter(is_chosen).collect();
        let kept = if self.link.is_some() { chosen } else { undominated(&chosen, self.cost()) };
        if let Choice::Any { pool, .. } = &mut self.choice {
            *pool = kept;
        }
        self
    }

    /// The schemes of a search; none for a list.
    pub(super) fn pool(&self) -> Option<&[Scheme]> {
        match &self.choice {
            Choice::List(_) => None,
            Choice::Any { pool, .. } => Some(pool),
        }
    }

    /// The link by which transfers count; none if they do not count.
    pub fn link(&self) -> Option<&Link> {
        self.link.as_deref().map(RunLink::link)
    }

    /// The planner's cost model.
    pub fn cost(&self) -> &CostModel {
        self.capacities().cost()
    }

    /// The capacities where replicas take the fastest ranks first; bounds are the same in every order of placement.
    pub(super) fn capacities(&self) -> &Capacities {
        &self.by_order[0]
    }

    /// The strategies of the list; for a search, its fallback strategies.
    pub fn strategies(&self) -> &[Strategy] {
        match &self.choice {
            Choice::List(list) => list,
            Choice::Any { mixes, .. } => mixes,
        }
    }

    /// Whether the planner searches the set of replicas itself.
    pub fn is_search(&self) -> bool {
        matches!(self.choice, Choice::Any { .. })
    }

    /// The longest sequence that some strategy admits.
    pub fn longest_admitted(&self) -> Tokens {
        // On ranks of different memory, the placement of a scheme decides its longest sequence.
        if self.cost().cluster().memory_bytes().is_some() {
            return self.strategies().iter().map(|strategy| self.admitted_by(strategy)).max().unwrap_or_default();
        }
        self.widest().map(ClassCost::longest).unwrap_or_default()
    }

    /// The plan of least iteration time found, with a proven bound; with a link, of least step time.
    ///
    /// Strategies of a list are evaluated in the order of their lower bounds, except those whose bound is above the
    /// best plan. Among plans equal within 0.1 % the one that moves fewest bytes wins, then the one of fewest
    /// GPU-seconds, then name order. The same batch always gives the same plan.
    ///
    /// With a link the bound is on the step, of which each stage of a replica has the least exposure that the replica's own
    /// transfers leave in any packing. Under sharding, and on unequal ranks, it is on the iteration.
    ///
    /// With the in-flight limit the plan is the shorter of two: the plan found with that limit, and the plan found with
    /// the per-micro-batch limit, which also satisfies the in-flight limit.
    pub fn plan(&self, batch: &Batch) -> Result<Plan> {
        self.plan_cancellable(batch, NEVER_CANCELLED)
    }

    /// The planner of the same choice with the per-micro-batch limit; none if this one has that limit.
    pub(super) fn within_caps(&self) -> Option<Planner> {
        let by_order = self.by_cap.clone()?;
        Some(Planner { by_order, by_cap: None, ..self.clone() })
    }

    /// The plan by this planner's memory rule, from all strategies of its choice.
    pub(super) fn plan_of_choice(&self, batch: &Batch, cancellation: Cancellation) -> Result<Plan> {
        let task = self.task(batch, cancellation);
        let (found, scope) = match &self.choice {
            Choice::List(list) => (self.plan_list(&task, list)?, Scope::List),
            Choice::Any { pool, mixes, listed } => {
                let (classes, simple) = (self.any_classes(pool)?, SimpleStrategies { mixes, listed });
                (Search::run(&task, &self.bounder(batch), &classes, simple)?, Scope::Any)
            }
        };
        let Found { mut evaluations, candidates, bound } = found;
        let (Some(best), Some(lower_bound)) = (task.objective.best(&evaluations), bound) else {
            return Err(self.too_long(batch));
        };
        let chosen = evaluations.swap_remove(best);
        Ok(Plan {
            format: FORMAT.into(),
            profile: self.cost().profile().name.clone(),
            cluster: self.cost().cluster().clone(),
            memory: self.cost().memory(),
            batch: batch.clone(),
            replicas: self.replicas(batch, &chosen)?,
            strategy: chosen.strategy,
            iteration_ms: chosen.iteration_ms,
            transfers: chosen.transfers,
            lower_bound,
            scope,
            stop: chosen.stop,
            candidates,
        })
    }

    /// Every constraint that `plan` violates for `batch`; see [`check()`].
    pub fn check(&self, plan: &Plan, batch: &Batch) -> Vec<Violation> {
        check(plan, batch, self.cost(), self.link())
    }

    /// The classes that replicas of these schemes have on some ranks: each scheme's own, or on ranks of different speed
    /// its relaxed ones.
    fn any_classes(&self, pool: &[Scheme]) -> Result<Vec<AnyClass<'_>>> {
        let relaxed = self.capacities().relaxed();
        if relaxed.is_empty() {
            return pool
                .iter()
                .map(|&scheme| Ok(AnyClass { capacity: self.capacities().scheme(scheme)?, level: 0 }))
                .collect();
        }
        let is_usable = |scheme: Scheme| pool.contains(&scheme);
        let usable = relaxed.iter().filter(|class| is_usable(class.capacity.cost().scheme()));
        Ok(usable.map(|class| AnyClass { capacity: &class.capacity, level: class.level }).collect())
    }

    /// A lower bound, without branching, for every strategy of the planner; none if a sequence is admitted by
    /// none of them.
    pub(crate) fn quick_bound(&self, batch: &Batch) -> Option<Millis> {
        let bounder = self.bounder(batch);
        match &self.choice {
            Choice::List(list) => {
                let mut least = None;
                for strategy in list {
                    // A bound that reaches the least one so far is not needed more exactly.
                    let limit = ProofLimit { until: least.unwrap_or(Millis::INFINITY), dual_solves: 1 };
                    let bound = self.bound(&bounder, strategy, limit).map(|bound| bound.ms);
                    least = least.into_iter().chain(bound).min();
                }
                least
            }
            Choice::Any { pool, .. } => {
                let branches =
                    bounder.of_any(&self.any_classes(pool).ok()?, self.capacities().level_ranks(), Millis::ZERO);
                branches.map(|branches| branches.least())
            }
        }
    }

    /// The search budget.
    pub fn budget(&self) -> SearchBudget {
        self.budget
    }

    /// The bounds of a batch within the planner's budget.
    pub(super) fn bounder<'a>(&self, batch: &'a Batch) -> Bounder<'a> {
        Bounder::new(batch, self.budget.bound)
    }

    /// A task that plans the batch with this planner.
    pub(super) fn task<'a>(&'a self, batch: &'a Batch, cancellation: Cancellation<'a>) -> Task<'a> {
        let objective: &dyn Objective = if self.exposures.is_empty() { &StepTimeWithIterationBound } else { &StepTime };
        let link = self.link.as_deref().map(|link| (link, objective));
        Task::new(batch, &self.by_order, link, &self.budget, cancellation)
    }

    /// The bound of one strategy; none if it does not admit every sequence.
    pub(super) fn bound(&self, bounder: &Bounder, strategy: &Strategy, limit: ProofLimit) -> Option<Bound> {
        bounder.of_strategy(self.capacities(), strategy, limit)
    }

    pub(super) fn replicas(&self, batch: &Batch, chosen: &Evaluation) -> Result<Vec<ReplicaPlan>> {
        let capacities = &self.by_order[chosen.order];
        let (ranks, classes) = (capacities.place(&chosen.strategy)?, capacities.replicas(&chosen.strategy)?);
        let parts = classes.into_iter().zip(ranks).zip(&chosen.packings);
        let replicas = parts.map(|((class, ranks), packing)| {
            let (cost, scheme) = (class.cost(), class.cost().scheme());
            let time = |ids: &Vec<usize>| cost.micro_batch_ms(ids.iter().map(|&id| batch.tokens()[id]));
            let stage_mean = cost.stage_multipliers().iter().sum::<f64>() / count(scheme.stages());
            let mut replica = ReplicaPlan {
                scheme,
                context: cost.context(),
                ranks,
                busy_ms: packing.micro_batches.iter().map(time).sum::<Millis>() * stage_mean,
                micro_batches: packing.micro_batches.clone(),
                cap_tokens: cost.cap(),
                predicted_ms: packing.ms,
                reliability: None,
            };
            replica.reliability = cost.reliability(replica.reach(batch));
            replica
        });
        Ok(replicas.collect())
    }

    /// The longest sequence that a strategy admits.
    pub(crate) fn admitted_by(&self, strategy: &Strategy) -> Tokens {
        let classes = self.by_order.iter().flat_map(|capacities| capacities.classes(strategy).unwrap_or_default());
        classes.map(|(class, _)| class.cost().longest()).max().unwrap_or_default()
    }

    /// The schemes that a plan may use.
    fn schemes(&self) -> Vec<Scheme> {
        match &self.choice {
            Choice::List(list) => list.iter().flat_map(Strategy::schemes).copied().collect(),
            Choice::Any { pool, .. } => pool.clone(),
        }
    }

    fn widest(&self) -> Option<&ClassCost> {
        self.schemes()
            .into_iter()
            .filter_map(|scheme| self.cost().scheme(scheme).ok())
            .max_by_key(|cost| cost.longest())
    }

    fn too_long(&self, batch: &Batch) -> Error {
        let (sequence, tokens) = batch.longest();
        let admitting = match &self.choice {
            Choice::List(list) if list.len() == 1 => Admitting::Strategy(list[0].clone()),
            Choice::List(list) => Admitting::AnyOf(list.len()),
            Choice::Any { .. } => Admitting::Any,
        };
        let scheme = self.widest().map(ClassCost::scheme);
        Error::SequenceTooLong { sequence, tokens, admitting, limit: self.longest_admitted(), scheme }
    }
}

/// The least exposure of each stage of replicas of each scheme. None on unequal ranks, and where gradients leave in rounds.
fn least_exposures(link: &RunLink, cost: &CostModel) -> Result<BTreeMap<Scheme, Vec<Exposure>>> {
    let mut exposures = BTreeMap::new();
    if !cost.cluster().is_uniform() || !cost.profile().sharding.is_none() {
        return Ok(exposures);
    }
    let usable = usable_schemes(cost);
    let is_usable = |scheme: Scheme| usable.contains(&scheme) && link.link().admits(scheme).is_ok();
    for class in cost.best().iter().filter(|class| is_usable(class.scheme())) {
        let of_stages = link.least_exposures(class, cost.cluster())?;
        exposures.extend(of_stages.map(|of_stages| (class.scheme(), of_stages)));
    }
    Ok(exposures)
}
