//! Checks that instruction lists finish on the weakest transport.

use crate::pipeline::{Instruction, Neighbour};

/// Whether the stages of one replica finish if every rank has a single channel and every exchange waits for its
/// partner's matching one, in list order.
///
/// Neither NCCL nor gloo guarantees more than that, so lists that need buffering could deadlock.
pub fn finishes(lists: &[Vec<Instruction>]) -> bool {
    let mut at = vec![0; lists.len()];
    loop {
        let mut progressed = false;
        for stage in 0..lists.len() {
            progressed |= run_alone(&lists[stage], &mut at[stage]);
            progressed |= meet_next(lists, &mut at, stage);
        }
        if !progressed {
            return at.iter().zip(lists).all(|(at, list)| *at == list.len());
        }
    }
}

/// Runs computations up to the next exchange.
fn run_alone(list: &[Instruction], at: &mut usize) -> bool {
    let start = *at;
    while list.get(*at).is_some_and(|step| !matches!(step, Instruction::SendReceive { .. })) {
        *at += 1;
    }
    *at > start
}

/// Completes an exchange between `stage` and the next, if both have reached it and agree on the tensors.
fn meet_next(lists: &[Vec<Instruction>], at: &mut [usize], stage: usize) -> bool {
    let Some(after) = lists.get(stage + 1) else { return false };
    let (Some(&mine), Some(&theirs)) = (lists[stage].get(at[stage]), after.get(at[stage + 1])) else { return false };
    let (
        Instruction::SendReceive { neighbour: Neighbour::Next, send, receive },
        Instruction::SendReceive { neighbour: Neighbour::Previous, send: back, receive: forth },
    ) = (mine, theirs)
    else {
        return false;
    };
    let agreed = send == forth && receive == back;
    if agreed {
        at[stage] += 1;
        at[stage + 1] += 1;
    }
    agreed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::instructions;

    fn lists(stages: usize, micro_batches: usize) -> Vec<Vec<Instruction>> {
        (0..stages).map(|stage| instructions(stage, stages, micro_batches)).collect()
    }

    #[test]
    fn every_pipeline_finishes() {
        for (stages, micro_batches) in (1..9).flat_map(|p| (0..20).map(move |v| (p, v))) {
            assert!(finishes(&lists(stages, micro_batches)), "{stages} stages, {micro_batches} micro-batches");
        }
    }

    #[test]
    fn a_list_that_sends_before_its_exchange_deadlocks() {
        // A typical error: the steady state's exchange split into a send, then a receive.
        let mut broken = lists(2, 3);
        let paired =
            |step: &Instruction| matches!(step, Instruction::SendReceive { send: Some(_), receive: Some(_), .. });
        let place = broken[0].iter().position(paired).unwrap();
        let Instruction::SendReceive { neighbour, send, receive } = broken[0][place] else { unreachable!() };
        broken[0][place] = Instruction::SendReceive { neighbour, send, receive: None };
        broken[0].insert(place + 1, Instruction::SendReceive { neighbour, send: None, receive });
        assert!(!finishes(&broken));
    }
}
