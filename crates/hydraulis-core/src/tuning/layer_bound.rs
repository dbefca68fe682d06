//! Lower bounds of the time of layers under a memory limit: memory beyond the limit costs a price instead (Lagrange).

use super::layer_choice::{LayerProblem, Prefix};

/// The least time and price of the layers that follow a prefix.
pub(super) struct Bound {
    price: f64,
    limit: f64,
    options: usize,
    /// By number of layers that follow and option of the last layer before them.
    rest: Vec<f64>,
}

impl Bound {
    /// No whole choice within the limit that begins with the prefix takes less time.
    pub(super) fn at(&self, prefix: &Prefix, following: usize) -> f64 {
        let rest = self.rest[following * self.options + prefix.option as usize];
        prefix.time + rest + self.price * (float(prefix.memory) - self.limit)
    }
}

/// A choice of all layers that a price makes cheapest.
#[derive(Clone, Copy)]
struct Priced {
    time: f64,
    memory: f64,
}

/// The bounds of the prices tried, the tightest first, with its bound of all choices and the time of a choice that fits.
pub(super) struct Bounds {
    pub(super) by_price: Vec<Bound>,
    pub(super) least: f64,
    pub(super) most: f64,
}

/// Most prices that are tried for the tightest bound.
const MOST_PRICES: usize = 40;
/// Other prices, as shares of the tightest one: they bound prefixes of much or little memory.
const OTHER_SHARES: [f64; 4] = [0.0, 0.25, 0.6, 1.6];

impl Bounds {
    /// The bounds of a problem of one layer at least, whose least memory fits.
    pub(super) fn tightest(problem: &LayerProblem) -> Bounds {
        let limit = float(problem.limit);
        let (free, fastest) = priced(problem, 1.0, 0.0);
        if fastest.memory <= limit {
            return Bounds { by_price: vec![free], least: fastest.time, most: fastest.time };
        }
        let (mut above, mut below) = (fastest, priced(problem, 0.0, 1.0).1);
        let (mut best, mut least, mut most) = (free, fastest.time, below.time);
        for _ in 0..MOST_PRICES {
            let price = (below.time - above.time) / (above.memory - below.memory);
            if price <= 0.0 {
                break;
            }
            let (bound, found) = priced(problem, 1.0, price);
            let value = found.time + price * (found.memory - limit);
            let known = above.time + price * (above.memory - limit);
            if value > least {
                (best, least) = (bound, value);
            }
            if found.memory <= limit {
                most = most.min(found.time);
                below = found;
            } else {
                above = found;
            }
            if value >= known - 1e-12 * known.abs() {
                break;
            }
        }
        let others = OTHER_SHARES.map(|share| priced(problem, 1.0, share * best.price).0);
        Bounds { by_price: [best].into_iter().chain(others).collect(), least, most }
    }

    /// Rounding of the bounds.
    pub(super) fn slack(&self) -> f64 {
        let best = &self.by_price[0];
        1e-12 * (self.most.abs() + best.price * best.limit)
    }
}

/// The bound of a price, and the choice of least time, times a weight, and price.
fn priced(problem: &LayerProblem, weight: f64, price: f64) -> (Bound, Priced) {
    let options = problem.options.len();
    let own: Vec<f64> = problem.options.iter().map(|one| weight * one.time + price * float(one.memory)).collect();
    let mut rest = vec![0.0; options];
    let mut next: Vec<u32> = Vec::new();
    for following in 1..problem.layers {
        let before = (following - 1) * options;
        let costs: Vec<f64> = own.iter().zip(&rest[before..]).map(|(own, rest)| own + rest).collect();
        let free = cheapest(costs.iter().copied());
        for option in 0..options {
            let (place, cost) = match problem.transition {
                None => free,
                Some(times) => cheapest(costs.iter().zip(&times[option]).map(|(cost, change)| cost + weight * change)),
            };
            rest.push(cost);
            next.push(place);
        }
    }
    let last = (problem.layers - 1) * options;
    let mut option = cheapest(own.iter().zip(&rest[last..]).map(|(own, rest)| own + rest)).0 as usize;
    let first = problem.options[option];
    let mut found = Priced { time: first.time, memory: float(first.memory) };
    for following in (0..problem.layers - 1).rev() {
        let then = next[following * options + option] as usize;
        found.time += problem.options[then].time + problem.change(option, then);
        found.memory += float(problem.options[then].memory);
        option = then;
    }
    (Bound { price, limit: float(problem.limit), options, rest }, found)
}

/// The place and the cost of the cheapest of some costs.
fn cheapest(costs: impl Iterator<Item = f64>) -> (u32, f64) {
    let less = |one: (u32, f64), other: (u32, f64)| if other.1 < one.1 { other } else { one };
    (0..).zip(costs).fold((0, f64::INFINITY), less)
}

#[expect(clippy::cast_precision_loss, reason = "memory is at most 2^53")]
fn float(x: u64) -> f64 {
    x as f64
}
