//! A split of a total by weight under a cap, in whole tokens.
//!
//! Each share is the exact fraction, rounded down, or up by the rule of the largest remainder, and
//! never above the cap. Tokens that the cap takes from one engine go to the others by weight.
//!
//! # Invariants
//! 1. No share is above the cap; the sum is the total, or all are at the cap
//!    (`tests::shares_are_capped_exhaustive_and_fair`).

/// Splits a total into one share per weight. Weights of 0 count as 1.
pub(crate) fn split(total: u32, weights: &[u32], permille: u32) -> Vec<u32> {
    let cap = u128::from(total) * u128::from(permille.min(1000)) / 1000;
    let weights: Vec<u128> = weights
        .iter()
        .map(|&weight| u128::from(weight.max(1)))
        .collect();
    let mut shares = vec![0_u128; weights.len()];
    let mut under: Vec<usize> = (0..weights.len()).collect();
    let mut left = u128::from(total);
    // An engine above the cap in one round is fixed there. The rest then grows per weight, so
    // others may pass the cap in the next round.
    let weight_under = loop {
        let sum: u128 = under.iter().map(|&engine| weights[engine]).sum();
        let above = |&engine: &usize| left * weights[engine] > cap * sum;
        let (capped, rest): (Vec<usize>, Vec<usize>) =
            under.iter().partition(|&engine| above(engine));
        if capped.is_empty() {
            break sum;
        }
        for &engine in &capped {
            shares[engine] = cap;
        }
        left -= (cap * capped.len() as u128).min(left);
        under = rest;
    };
    if !under.is_empty() {
        by_weight(
            &mut shares,
            &weights,
            &under,
            Left {
                tokens: left,
                weight: weight_under,
                cap,
            },
        );
    }
    shares
        .into_iter()
        .map(|share| u32::try_from(share).unwrap_or(total))
        .collect()
}

/// The tokens to be split in the last round.
struct Left {
    tokens: u128,
    weight: u128,
    cap: u128,
}

fn by_weight(shares: &mut [u128], weights: &[u128], under: &[usize], left: Left) {
    let mut remainders = Vec::with_capacity(under.len());
    let mut rounding = left.tokens;
    for &engine in under {
        let exact = left.tokens * weights[engine];
        shares[engine] = exact / left.weight;
        rounding -= shares[engine];
        remainders.push((std::cmp::Reverse(exact % left.weight), engine));
    }
    // Engines are numbered in attach order, which breaks ties.
    remainders.sort_unstable();
    for (_, engine) in remainders {
        if rounding > 0 && shares[engine] < left.cap {
            shares[engine] += 1;
            rounding -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
