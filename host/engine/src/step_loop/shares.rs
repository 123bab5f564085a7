//! The division of a step's tokens among sequences.
//!
//! # Invariants
//! 1. The shares sum to at most the budget, and none is more than its sequence can use.
//! 2. Every sequence that can go on gets a token, as far as the budget goes; where it does not go
//!    round, those come first whose last turn is longest ago. So none waits for ever, and a
//!    sequence that decodes waits for no prompt.
//! 3. What is left of the budget goes to prompts, in order of start.

/// The need of one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    /// Tokens to compute for which there are blocks: one in decode, the rest of the prompt before
    /// that, none if the sequence lacks a block.
    pub(super) tokens: usize,
    /// The sequence's last step.
    pub(super) last_step: u64,
}

/// Returns the share of each of `needs`, which are in order of start.
pub(super) fn share(needs: &[Need], budget: usize) -> Vec<usize> {
    let mut shares = vec![0; needs.len()];
    let able = (0..needs.len()).filter(|idx| needs[*idx].tokens > 0);
    let mut able: Vec<usize> = able.collect();
    if able.len() > budget {
        able.sort_by_key(|idx| needs[*idx].last_step);
        able.truncate(budget);
    }
    let mut left = budget - able.len();
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
        let needs = tokens.iter().map(|tokens| Need {
            tokens: *tokens,
            last_step: 0,
        });
        needs.collect()
    }

    #[test]
    fn sequences_that_decode_come_before_prompts_and_prompts_in_order_of_start() {
        assert_eq!(share(&needs(&[40, 1, 30, 1]), 20), [17, 1, 1, 1]);
        assert_eq!(share(&needs(&[40, 1, 30, 1]), 60), [40, 1, 18, 1]);
        assert_eq!(share(&needs(&[40, 1, 30, 1]), usize::MAX), [40, 1, 30, 1]);
    }

    #[test]
    fn a_sequence_without_a_block_leaves_its_share_to_others() {
        assert_eq!(share(&needs(&[0, 5, 0, 5]), 7), [0, 5, 0, 2]);
        assert_eq!(share(&needs(&[0, 0]), 7), [0, 0]);
    }

    #[test]
    fn no_budget_is_no_step() {
        assert_eq!(share(&needs(&[1, 5]), 0), [0, 0]);
        assert!(share(&[], 5).is_empty());
    }

    #[test]
    fn a_budget_below_the_number_of_sequences_goes_round() {
        let mut needs = needs(&[1, 9, 1, 0, 1]);
        let mut turns = [0; 5];
        for step in 1..=20 {
            let shares = share(&needs, 2);
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
            let needs: Vec<Need> = (0..rng.usize(0..9))
                .map(|_| Need {
                    tokens: rng.usize(0..20),
                    last_step: rng.u64(0..5),
                })
                .collect();
            let budget = rng.usize(0..60);
            let shares = share(&needs, budget);
            let used: usize = shares.iter().sum();
            let usable: usize = needs.iter().map(|need| need.tokens).sum();
            assert_eq!(used, budget.min(usable), "{needs:?} {budget}");
            assert!(shares.iter().zip(&needs).all(|(s, n)| *s <= n.tokens));
            let able = needs.iter().filter(|need| need.tokens > 0).count();
            let served = shares.iter().filter(|tokens| **tokens > 0).count();
            assert_eq!(served, able.min(budget), "{needs:?} {budget}");
        }
    }
}
