//! Requests through a number of slots, step by step.

use super::cost::Cost;
use super::trace::Request;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeSet, VecDeque};

/// When waiting requests are let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Once all slots are empty: as many as wait then, up to the number of slots, as one batch.
    Static,
    /// Whenever a slot is free.
    Continuous,
}

impl Policy {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Static => "static",
            Policy::Continuous => "continuous",
        }
    }
}

/// Times and slot of a finished request, in the unit of the costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Served {
    /// When it came.
    pub arrival: f64,
    /// The slot that it was in.
    pub slot: usize,
    /// When it was let in.
    pub admitted: f64,
    /// When its first token was there.
    pub first_token: f64,
    /// When its last token was there.
    pub finished: f64,
}

/// Results of a simulated run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The requests, in the order of the trace.
    pub served: Vec<Served>,
    /// Steps.
    pub steps: u64,
}

/// A request in a slot.
struct Active {
    index: usize,
    slot: usize,
    /// Prompt tokens that are still to be read.
    prompt: u32,
    /// Tokens that are still to be made.
    output: u32,
}

/// Runs requests (in the order of their arrival, which is in the unit of `cost`) through `slots`
/// slots. In each step every request whose prompt is read gets one token; a prompt's last token
/// gives the first token of the answer in the same step. At most `chunk` prompt tokens are read
/// in a step, those of earlier requests first.
pub fn simulate(requests: &[Request], policy: Policy, slots: usize, chunk: u32, cost: &Cost) -> Run {
    let (slots, chunk) = (slots.max(1), chunk.max(1));
    let mut served: Vec<Served> = requests
        .iter()
        .map(|r| Served { arrival: r.arrival, slot: 0, admitted: 0.0, first_token: 0.0, finished: 0.0 })
        .collect();
    let mut waiting: VecDeque<usize> = (0..requests.len()).collect();
    let mut active: Vec<Active> = Vec::new();
    let mut free: BTreeSet<usize> = (0..slots).collect();
    let (mut now, mut steps) = (0.0, 0);
    loop {
        if active.is_empty() {
            let Some(&next) = waiting.front() else { break };
            now = requests[next].arrival.max(now);
        }
        let open = policy == Policy::Continuous || active.is_empty();
        while open
            && let Some(&slot) = free.first()
            && let Some(index) = waiting.pop_front_if(|index| requests[*index].arrival <= now)
        {
            free.remove(&slot);
            (served[index].slot, served[index].admitted) = (slot, now);
            active.push(Active { index, slot, prompt: requests[index].prompt, output: requests[index].output });
        }
        now += step(&mut active, chunk, cost);
        steps += 1;
        for a in &active {
            let (request, out) = (&requests[a.index], &mut served[a.index]);
            if a.output + 1 == request.output {
                out.first_token = now;
            }
            if a.output == 0 {
                out.finished = now;
                free.insert(a.slot);
            }
        }
        active.retain(|a| a.output > 0);
    }
    Run { served, steps }
}

/// One step of what is in the slots; how long it takes.
fn step(active: &mut [Active], chunk: u32, cost: &Cost) -> f64 {
    let (mut decoding, mut room) = (0, chunk);
    for a in active.iter_mut() {
        if a.prompt == 0 {
            decoding += 1;
        } else {
            let read = a.prompt.min(room);
            a.prompt -= read;
            room -= read;
        }
        if a.prompt == 0 {
            a.output -= 1;
        }
    }
    cost.step(decoding, u64::from(chunk - room))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn requests(of: &[(f64, u32, u32)]) -> Vec<Request> {
        of.iter().map(|&(arrival, prompt, output)| Request { arrival, prompt, output }).collect()
    }

    fn finished(run: &Run) -> Vec<f64> {
        run.served.iter().map(|s| s.finished).collect()
    }

    #[test]
    fn by_hand() {
        // Two slots; the third must wait for the batch, or for the first slot that is free.
        let trace = requests(&[(0.0, 1, 2), (0.0, 1, 5), (1.0, 1, 2)]);
        let fixed = simulate(&trace, Policy::Static, 2, 100, &Cost::Unit);
        assert_eq!((finished(&fixed), fixed.steps), (vec![2.0, 5.0, 7.0], 7));
        let continuous = simulate(&trace, Policy::Continuous, 2, 100, &Cost::Unit);
        assert_eq!((finished(&continuous), continuous.steps), (vec![2.0, 5.0, 4.0], 5));
        let third = continuous.served[2];
        assert_eq!((third.slot, third.admitted, third.first_token), (0, 2.0, 3.0));
    }

    #[test]
    fn prompts_are_read_in_chunks_beside_decoding() {
        // 10 prompt tokens at 4 a step: the first token comes with the third step.
        let trace = requests(&[(0.0, 10, 2), (0.0, 3, 1)]);
        let run = simulate(&trace, Policy::Continuous, 2, 4, &Cost::Unit);
        assert_eq!((run.served[0].first_token, run.served[0].finished), (3.0, 4.0));
        // Of the third step's 4 tokens, 2 are left for the second request; the last comes with the fourth.
        assert_eq!(run.served[1].finished, 4.0);
    }

    #[test]
    fn an_idle_machine_waits_for_the_next_request() {
        let run = simulate(&requests(&[(0.0, 1, 1), (10.5, 1, 1)]), Policy::Static, 8, 100, &Cost::Unit);
        assert_eq!((finished(&run), run.steps), (vec![1.0, 11.5], 2));
    }

    fn traces() -> impl Strategy<Value = Vec<Request>> {
        let request = (0u32..4, 1u32..30, 1u32..20);
        prop::collection::vec(request, 1..30).prop_map(|list| {
            let mut at = 0.0;
            let mut next = |(gap, prompt, output): (u32, u32, u32)| {
                at += f64::from(gap);
                Request { arrival: at, prompt, output }
            };
            list.into_iter().map(&mut next).collect()
        })
    }

    proptest! {
        #[test]
        fn every_request_is_served_in_order_and_no_slot_twice(
            trace in traces(), slots in 1usize..6, chunk in 1u32..40, fixed: bool
        ) {
            let policy = if fixed { Policy::Static } else { Policy::Continuous };
            let run = simulate(&trace, policy, slots, chunk, &Cost::Unit);
            for (s, r) in run.served.iter().zip(&trace) {
                prop_assert!(s.arrival <= s.admitted && s.admitted < s.first_token && s.first_token <= s.finished);
                prop_assert!(s.finished - s.first_token >= f64::from(r.output - 1));
                prop_assert!(s.slot < slots);
            }
            prop_assert!(run.served.windows(2).all(|pair| pair[0].admitted <= pair[1].admitted));
            let mut spans: Vec<(usize, f64, f64)> = run.served.iter().map(|s| (s.slot, s.admitted, s.finished)).collect();
            spans.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
            prop_assert!(spans.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1));
            // With one slot, there is nothing that the policies could do differently.
            if slots == 1 {
                let other = if fixed { Policy::Continuous } else { Policy::Static };
                prop_assert_eq!(run, simulate(&trace, other, slots, chunk, &Cost::Unit));
            }
        }
    }
}
