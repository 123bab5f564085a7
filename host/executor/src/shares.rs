//! The division of a step's tokens among sequences, as every executor that makes steps has it.
//!
//! # Invariants
//! 1. The shares sum to at most the budget, and none is more than its sequence can use.
//! 2. Every sequence that can go on gets a token, as far as the budget goes; where it does not go
//!    round, those come first whose last turn is longest ago. So none waits for ever, and a
//!    sequence that decodes waits for no prompt.
//! 3. What is left of the budget goes to prompts, up to the arrangement's `prefill_max` tokens for
//!    all of them: first the ones it names, in its order, then the others in order of arrival.

use pointsman_events::{Arrangement, RequestId};

/// The need of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// The request that the sequence serves.
    pub request: RequestId,
    /// Tokens to compute for which there are blocks: one in decode, the rest of the prompt before
    /// that, none if the sequence lacks a block.
    pub tokens: usize,
    /// True until the KV of the whole prompt is there.
    pub is_prompt: bool,
    /// The sequence's last step.
    pub last_step: u64,
}

/// Returns the share of each of `needs`, which are in order of start.
#[must_use]
pub fn share(needs: &[Need], budget: usize, arrangement: &Arrangement) -> Vec<usize> {
    let mut shares = vec![0; needs.len()];
    let able = (0..needs.len()).filter(|idx| needs[*idx].tokens > 0);
    let mut able: Vec<usize> = able.collect();
    if able.len() > budget {
        able.sort_by_key(|idx| needs[*idx].last_step);
        able.truncate(budget);
    }
    let mut left = budget - able.len();
    if let Some(prefill_max) = arrangement.prefill_max {
        let prompts = able.iter().filter(|idx| needs[**idx].is_prompt).count();
        left = left.min((prefill_max as usize).saturating_sub(prompts));
    }
    let places = arrangement.places();
    able.sort_by_key(|idx| {
        let request = needs[*idx].request;
        let place = places.get(&request).copied();
        (place.unwrap_or(usize::MAX), request)
    });
    for idx in able {
        let more = left.min(needs[idx].tokens - 1);
        shares[idx] = 1 + more;
        left -= more;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(tokens: &[usize]) -> Vec<Need> {
        let needs = (0..).zip(tokens).map(|(request, tokens)| Need {
            request: RequestId(request),
            tokens: *tokens,
            is_prompt: *tokens > 1,
            last_step: 0,
        });
        needs.collect()
    }

    fn arranged(prefill_max: Option<u32>, first: &[u64]) -> Arrangement {
        Arrangement {
            prefill_max,
            first: first.iter().copied().map(RequestId).collect(),
        }
    }

    fn by_arrival(needs: &[Need], budget: usize) -> Vec<usize> {
        share(needs, budget, &Arrangement::default())
    }

    #[test]
    fn sequences_that_decode_come_before_prompts_and_prompts_in_order_of_arrival() {
        assert_eq!(by_arrival(&needs(&[40, 1, 30, 1]), 20), [17, 1, 1, 1]);
        assert_eq!(by_arrival(&needs(&[40, 1, 30, 1]), 60), [40, 1, 18, 1]);
        let all = by_arrival(&needs(&[40, 1, 30, 1]), usize::MAX);
        assert_eq!(all, [40, 1, 30, 1]);
        // One that was preempted, and starts again after a later one.
        let mut needs = needs(&[40, 30]);
        needs[0].request = RequestId(7);
        assert_eq!(by_arrival(&needs, 32), [2, 30]);
    }

    #[test]
    fn prompts_come_in_the_order_that_was_set_and_none_goes_without() {
        let needs = needs(&[40, 1, 30, 20]);
        let shares = |first: &[u64]| share(&needs, 24, &arranged(None, first));
        assert_eq!(shares(&[3, 2, 0]), [1, 1, 2, 20]);
        assert_eq!(shares(&[2]), [1, 1, 21, 1]);
        assert_eq!(shares(&[99]), [21, 1, 1, 1]);
    }

    #[test]
    fn prompts_take_no_more_of_a_step_than_they_may_but_a_token_each() {
        let needs = needs(&[40, 1, 30, 1]);
        let shares = |max| share(&needs, 64, &arranged(Some(max), &[2]));
        assert_eq!(shares(16), [1, 1, 15, 1]);
        assert_eq!(shares(40), [10, 1, 30, 1]);
        assert_eq!(shares(0), [1, 1, 1, 1]);
        assert_eq!(shares(u32::MAX), [32, 1, 30, 1]);
    }

    #[test]
    fn a_sequence_without_a_block_leaves_its_share_to_others() {
        assert_eq!(by_arrival(&needs(&[0, 5, 0, 5]), 7), [0, 5, 0, 2]);
        assert_eq!(by_arrival(&needs(&[0, 0]), 7), [0, 0]);
    }

    #[test]
    fn no_budget_is_no_step() {
        assert_eq!(by_arrival(&needs(&[1, 5]), 0), [0, 0]);
        assert!(by_arrival(&[], 5).is_empty());
    }

    #[test]
    fn a_budget_below_the_number_of_sequences_goes_round() {
        let mut needs = needs(&[1, 9, 1, 0, 1]);
        let mut turns = [0; 5];
        let arrangement = arranged(Some(3), &[4, 2]);
        for step in 1..=20 {
            let shares = share(&needs, 2, &arrangement);
            assert_eq!(shares.iter().sum::<usize>(), 2);
            for (idx, tokens) in shares.iter().enumerate().filter(|(_, t)| **t > 0) {
                turns[idx] += tokens;
                needs[idx].last_step = step;
            }
        }
        assert_eq!(turns, [10, 10, 10, 0, 10]);
    }

    #[test]
    fn shares_keep_to_the_budget_and_to_what_can_be_used() {
        let mut rng = fastrand::Rng::with_seed(2);
        for _ in 0..2000 {
            let needs: Vec<Need> = (0..rng.u64(0..9))
                .map(|request| {
                    let tokens = rng.usize(0..20);
                    Need {
                        request: RequestId(request),
                        tokens,
                        is_prompt: tokens > 1 || rng.bool(),
                        last_step: rng.u64(0..5),
                    }
                })
                .collect();
            let budget = rng.usize(0..60);
            let first: Vec<u64> = (0..rng.u64(0..4)).map(|_| rng.u64(0..9)).collect();
            let prefill_max = rng.bool().then(|| rng.u32(0..40));
            let shares = share(&needs, budget, &arranged(prefill_max, &first));
            let used: usize = shares.iter().sum();
            let usable: usize = needs.iter().map(|need| need.tokens).sum();
            assert!(used <= budget.min(usable), "{needs:?} {budget}");
            assert!(shares.iter().zip(&needs).all(|(s, n)| *s <= n.tokens));
            let able = needs.iter().filter(|need| need.tokens > 0).count();
            let served = shares.iter().filter(|tokens| **tokens > 0).count();
            assert_eq!(served, able.min(budget), "{needs:?} {budget}");
            let prompts = needs.iter().zip(&shares).filter(|(need, _)| need.is_prompt);
            let (count, prefilled) = prompts.fold((0, 0), |(count, sum), (_, tokens)| {
                (count + usize::from(*tokens > 0), sum + tokens)
            });
            match prefill_max {
                None => assert_eq!(used, budget.min(usable), "{needs:?} {budget}"),
                Some(max) => assert!(prefilled <= count.max(max as usize), "{needs:?} {max}"),
            }
        }
    }
}
