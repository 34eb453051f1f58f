//! Predicted speedup of speculative decoding, from the rate at which drafts are accepted.

/// Expected tokens of one pass of the target over `gamma` drafted tokens, each accepted with
/// probability `acceptance`, independently: `(1 - a^(g+1)) / (1 - a)`.
pub fn expected_tokens(acceptance: f64, gamma: usize) -> f64 {
    // As a sum, which has no hole at 1.
    (0..=gamma).map(|i| acceptance.powi(i as i32)).sum()
}

/// Expected speed as a multiple of the target's alone: `E / (g c + 1)`, where a drafted token
/// costs `draft_cost` as a share of one of the target's, and a pass over all drafts as much as
/// one token.
pub fn speed_up(acceptance: f64, gamma: usize, draft_cost: f64) -> f64 {
    speed_up_with(acceptance, gamma, draft_cost, 1.0)
}

/// [`speed_up`] where a pass over all drafts costs `pass_cost` of the target's tokens.
pub fn speed_up_with(acceptance: f64, gamma: usize, draft_cost: f64, pass_cost: f64) -> f64 {
    expected_tokens(acceptance, gamma) / (gamma as f64 * draft_cost + pass_cost)
}

/// The number of drafted tokens, of 1 to `most`, with the greatest expected speed-up; the fewest
/// of equals.
pub fn best_gamma(acceptance: f64, draft_cost: f64, most: usize) -> usize {
    let better = |best: usize, gamma: usize| {
        let of = |g| speed_up(acceptance, g, draft_cost);
        if of(gamma) > of(best) { gamma } else { best }
    };
    (1..=most).fold(1, better)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_good_draft_gives_3_40x() {
        assert_eq!(format!("{:.2}", speed_up(0.9, 8, 0.1)), "3.40");
    }

    #[test]
    fn a_poor_draft_gives_0_79x() {
        assert_eq!(format!("{:.2}", speed_up(0.3, 8, 0.1)), "0.79");
    }

    #[test]
    fn the_best_gamma_is_the_best() {
        // (1 - a^2) / (1 - a) = 1 + a over c + 1.
        assert!((speed_up(0.5, 1, 0.25) - 1.2).abs() < 1e-12);
        assert_eq!(expected_tokens(1.0, 4), 5.0);
        assert_eq!(expected_tokens(0.0, 4), 1.0);
        assert_eq!(best_gamma(0.3, 0.1, 8), 1);
        assert_eq!(best_gamma(1.0, 0.1, 8), 8);
    }

    proptest! {
        #[test]
        fn tokens_of_a_pass_follow_the_closed_form(a in 0.0f64..0.999, g in 0usize..20) {
            let closed = (1.0 - a.powi(g as i32 + 1)) / (1.0 - a);
            prop_assert!((expected_tokens(a, g) - closed).abs() < 1e-9 * closed);
            prop_assert!(closed >= 1.0 - 1e-12 && closed <= g as f64 + 1.0);
        }
    }
}
