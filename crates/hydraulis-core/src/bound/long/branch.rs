//! Whole numbers of replicas: branch and bound on the program over patterns (Land and Doig 1960).

use crate::bound::branch::WHOLE;
use crate::bound::long::part::prove;
use crate::bound::long::program::LongProgram;
use crate::cancellation::Cancellation;
use crate::error::Result;
use crate::units::{Millis, count, whole};

/// The least and the greatest number of replicas of each class.
type Limits = Vec<(usize, usize)>;

/// The latest time found impossible for the program, from `from`, which is known to be, up to `until`.
pub(in crate::bound) fn latest_impossible(
    program: &mut LongProgram,
    from: Millis,
    until: Millis,
    cancellation: Cancellation,
) -> Result<Millis> {
    let (mut impossible, mut possible, mut probe) = (from, until, until);
    for _ in 0..program.budget.probes {
        cancellation()?;
        if is_impossible(program, probe) {
            impossible = probe;
        } else {
            possible = probe;
        }
        if possible.0 - impossible.0 <= program.budget.close * impossible.0 {
            break;
        }
        probe = Millis(0.5 * (impossible.0 + possible.0));
    }
    Ok(impossible)
}

/// Whether programs that together contain every plan each prove `time` impossible.
fn is_impossible(program: &mut LongProgram, time: Millis) -> bool {
    let whole: Limits = program.classes.iter().map(|class| (class.least, class.most)).collect();
    let (mut open, mut solved, mut is_proven) = (vec![whole.clone()], 0, true);
    while let Some(limits) = open.pop() {
        limit(program, &limits);
        let (is_part_proven, solution) = prove(program, time);
        solved += 1;
        if is_part_proven {
            continue;
        }
        let parts = divided(program, &limits, &solution.used).filter(|_| solved < program.budget.nodes);
        let Some(parts) = parts else {
            is_proven = false;
            break;
        };
        let is_within = |part: &Limits| {
            let taken: f64 = program.classes.iter().zip(part).map(|(class, one)| class.ranks() * count(one.0)).sum();
            taken <= f64::from(program.ranks)
        };
        open.extend(parts.into_iter().filter(is_within));
    }
    limit(program, &whole);
    is_proven
}

fn limit(program: &mut LongProgram, limits: &Limits) {
    for (class, &(least, most)) in program.classes.iter_mut().zip(limits) {
        (class.least, class.most) = (least, most);
    }
}

/// Two parts that divide a fraction used: at most the whole number below it, and at least the one above; the fraction
/// with the most ranks. None if the program uses whole numbers.
fn divided(program: &LongProgram, limits: &Limits, used: &[f64]) -> Option<[Limits; 2]> {
    let mut best: Option<(f64, usize, usize)> = None;
    for (index, ((class, &(least, most)), &amount)) in program.classes.iter().zip(limits).zip(used).enumerate() {
        let amount = amount.clamp(count(least), count(most));
        let away = (amount - amount.floor()).min(amount.ceil() - amount);
        let weight = away * class.ranks();
        if away > WHOLE && best.is_none_or(|(score, ..)| weight > score) {
            best = Some((weight, index, usize::try_from(whole(amount)).unwrap_or(usize::MAX)));
        }
    }
    let (_, index, below) = best?;
    let [mut fewer, mut more] = [limits.clone(), limits.clone()];
    fewer[index].1 = below;
    more[index].0 = below + 1;
    Some([fewer, more])
}
