//! Groups of ranks with one micro-batch each for many sequences: the best of greedy ways over lists of degrees.

use super::exact_groups::Group;
use super::sequence_groups::Degree;

/// Most lists of degrees that are tried.
const MOST_LISTS: usize = 20_000;

/// Most pairs of a sequence and a group over all lists and ways: about a third of a second.
const MOST_PAIRS: usize = 200_000_000;

/// Most sequences: more of them are left to the core's plan.
const MOST_SEQUENCES: usize = 10_000;

/// How a sequence chooses among the groups with room.
#[derive(Clone, Copy)]
enum Rule {
    /// The group that ends first with it.
    EarliestEnd,
    /// The group with the least room.
    LeastRoom,
}

/// The groups whose slowest ends first among the greedy ways; none if no way has room for all sequences, or if these are
/// too many.
pub(super) fn greedy_groups(ranks: u32, degrees: &[Degree], lengths: &[i64]) -> Option<Vec<Group>> {
    if lengths.is_empty() || lengths.len() > MOST_SEQUENCES {
        return None;
    }
    let mut widest_first = degrees.to_vec();
    widest_first.sort_by_key(|degree| std::cmp::Reverse(degree.ranks));
    let mut longest_first = lengths.to_vec();
    longest_first.sort_unstable_by_key(|length| std::cmp::Reverse(*length));
    let groups = lengths.len().min(ranks as usize).max(1);
    let limit = (MOST_PAIRS / (2 * groups * lengths.len())).clamp(1, MOST_LISTS);
    let mut lists = Lists { groups, limit, found: Vec::new() };
    lists.extend(&widest_first, ranks, &mut Vec::new());
    let ways = lists.found.iter().flat_map(|list| [(list, Rule::EarliestEnd), (list, Rule::LeastRoom)]);
    let plans = ways.filter_map(|(list, rule)| filled(list, &longest_first, rule));
    let best = plans.min_by(|one, other| one.0.total_cmp(&other.0))?;
    Some(best.1)
}

/// Lists of degrees with at most this many groups on the ranks.
struct Lists {
    groups: usize,
    limit: usize,
    found: Vec<Vec<Degree>>,
}

impl Lists {
    /// Adds every list that begins with these degrees and leaves no rank idle that a group could take.
    fn extend(&mut self, degrees: &[Degree], left: u32, list: &mut Vec<Degree>) {
        if self.found.len() >= self.limit {
            return;
        }
        let fitting = degrees.iter().position(|degree| degree.ranks <= left).filter(|_| list.len() < self.groups);
        let Some(first) = fitting else {
            self.found.push(list.clone());
            return;
        };
        for place in first..degrees.len() {
            list.push(degrees[place]);
            self.extend(&degrees[place..], left - degrees[place].ranks, list);
            list.pop();
        }
    }
}

/// The time of the slowest group, and the groups; none if a sequence finds no room.
fn filled(list: &[Degree], lengths: &[i64], rule: Rule) -> Option<(f64, Vec<Group>)> {
    let mut groups: Vec<Group> = list.iter().map(|degree| (degree.ranks, Vec::new())).collect();
    let mut times: Vec<f64> = list.iter().map(|degree| degree.fixed).collect();
    let mut rooms: Vec<i64> = list.iter().map(|degree| degree.cap).collect();
    for &length in lengths {
        let own = |place: usize| list[place].ms(std::iter::once(length)) - list[place].fixed;
        let fitting = (0..list.len()).filter(|&place| length <= rooms[place]);
        let place = match rule {
            Rule::EarliestEnd => {
                fitting.min_by(|&one, &other| (times[one] + own(one)).total_cmp(&(times[other] + own(other))))
            }
            Rule::LeastRoom => fitting.min_by_key(|&place| rooms[place]),
        }?;
        times[place] += own(place);
        rooms[place] -= length;
        groups[place].1.push(length);
    }
    let used = groups.iter().zip(&times).filter(|((_, own), _)| !own.is_empty());
    let slowest = used.map(|(_, &time)| time).fold(0.0, f64::max);
    groups.retain(|(_, own)| !own.is_empty());
    Some((slowest, groups))
}
